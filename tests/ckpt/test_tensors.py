"""The table of a shape's tensors says what the model declares, for every rank of every layout."""

import pytest
import torch

from mtl_common.layout import Layout
from mtl_common.shapes import ModelShape, parameters, preset
from mtl_common.tensors import aliases, held_boxes, model_tensors
from mtl_parallel.mesh import Axis, Mesh
from mtl_parallel.models.gpt import stage
from mtl_parallel.sharding import sharded_parameters


def gpt(**changes: object) -> ModelShape:
    sizes = {"hidden": 24, "layers": 4, "heads": 12, "kv_heads": 12, "head_dim": 2, "ffn": 36, "vocab": 301}
    return ModelShape(**{**sizes, "seq": 8, **changes})


SHAPES = {
    "gpt2": gpt(),
    "gpt2 untied": gpt(tied=False, bias=False),
    "llama": gpt(kv_heads=6, norm="rmsnorm", position="rope", activation="swiglu", bias=False, tied=False),
    "llama biased": gpt(kv_heads=6, norm="rmsnorm", position="rope", activation="swiglu"),
}


def mesh_of(layout: Layout, rank: int) -> Mesh:
    """A rank's mesh without process groups: enough to build a model, not to run it."""
    place = layout.place(rank)

    def axis(name: str) -> Axis:
        ranks = tuple(layout.group(rank, name))
        return Axis(name, place[name], len(ranks), ranks)

    alone = Mesh.single()
    fields = {name: getattr(alone, name) for name in alone.__dataclass_fields__}
    return Mesh(**{**fields, "layout": layout, "tp": axis("tp"), "dp": axis("dp"), "pp": axis("pp")})


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("layout", ["tp1", "tp2", "tp3", "pp2", "tp2pp4", "tp6dp2pp2"])
def test_the_table_is_what_the_layers_declare(name, layout) -> None:
    shape, layout = SHAPES[name], Layout.parse(layout)
    table = model_tensors(shape)
    for rank in range(layout.world):
        model = stage(shape, mesh_of(layout, rank), dtype=torch.float32)
        declared = {name: s for name, _, s in sharded_parameters(model) if not s.alias}
        held = {name: held_boxes(tensor, shape.layers, layout, rank) for name, tensor in table.items()}
        here = {
            name
            for name, tensor in table.items()
            if tensor.stage(shape.layers, layout.pp) == layout.place(rank)["pp"]
        }
        assert declared.keys() == here
        for tensor, sharding in declared.items():
            assert sharding.shape == table[tensor].shape
            assert sharding.boxes == held[tensor]
            assert sharding.copies == (table[tensor].cut == "copies")
        assert {n: s.alias for n, _, s in sharded_parameters(model) if s.alias}.items() <= aliases(
            shape
        ).items()


@pytest.mark.parametrize("name", ["gpt2-124m", "llama-7b", "tiny-llama"])
def test_the_table_has_as_many_elements_as_the_shape_has_parameters(name) -> None:
    shape = preset(name)
    total = sum(torch.Size(tensor.shape).numel() for tensor in model_tensors(shape).values())
    assert total == parameters(shape)
