"""Initial values that no layout changes: each is addressed by seed, parameter name and full-tensor index.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") makes four words from the
counter (column / 4, row, 0, 0) and a key; two words make two normal values (Box and Muller 1958). The float
path uses only operations that IEEE 754 rounds exactly, so a value has the same bits in any slice, anywhere.
"""

from hashlib import blake2b
from math import factorial, log, pi

import torch
from torch import Tensor, nn

from mtl_parallel.sharding import Sharding, sharded_parameters

Words = tuple[Tensor, Tensor, Tensor, Tensor]

_LOW = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_BLOCK = 1 << 16  # counters at a time: fewer cost more in calls, more fall out of the cache
_SINE = [(-1) ** k / factorial(2 * k + 1) for k in range(5)]
_COSINE = [(-1) ** k / factorial(2 * k) for k in range(5)]
_ATANH = [1 / (2 * k + 1) for k in range(5)]


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Philox4x32-10 of int64 tensors that hold 32-bit words; the shapes broadcast."""
    c0, c1, c2, c3 = torch.broadcast_tensors(*counter)  # type: ignore[no-untyped-call]
    k0, k1 = key
    for _ in range(10):
        # A product may wrap into the sign bit; the masks take that off again.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = (p1 >> 32).bitwise_and_(_LOW).bitwise_xor_(c1 ^ k0)
        c2 = (p0 >> 32).bitwise_and_(_LOW).bitwise_xor_(c3 ^ k1)
        c1, c3 = p1.bitwise_and_(_LOW), p0.bitwise_and_(_LOW)
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def _polynomial(x: Tensor, coefficients: list[float]) -> Tensor:
    result = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result.mul_(x).add_(coefficient)
    return result


def _log(x: Tensor) -> Tensor:
    """The natural logarithm of normal positive fp32 values, to about 1e-7."""
    root = 0x3F3504F3  # the bits of sqrt(1/2): mantissas are taken from [sqrt(1/2), sqrt(2))
    bits = x.view(torch.int32) + (0x3F800000 - root)
    exponent = (bits >> 23).sub_(127).float()
    mantissa = bits.bitwise_and_(0x7FFFFF).add_(root).view(torch.float32)
    s = (mantissa - 1).div_(mantissa + 1)  # log(mantissa) = 2 atanh(s)
    return _polynomial(s * s, _ATANH).mul_(s).mul_(2).add_(exponent.mul_(log(2)))


def _normals(radius: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Two standard normal values from two 32-bit words."""
    length = _log(radius.float().add_(1).mul_(2.0**-32)).mul_(-2).sqrt_()
    quarter = angle.float().mul_(2.0**-32).sub_(0.5).mul_(pi / 2)  # a quarter of an angle in [-pi, pi]
    square = quarter * quarter
    sine, cosine = _polynomial(square, _SINE).mul_(quarter), _polynomial(square, _COSINE)
    for _ in range(2):  # the angle doubles twice
        sine, cosine = (sine * cosine).mul_(2), (sine * sine).mul_(-2).add_(1)
    return cosine.mul_(length), sine.mul_(length)


def _draw(out: Tensor, key: tuple[int, int], row: int, column: int, mean: float, std: float) -> None:
    """Fills `out` `(R, C)`, which stands at `(row, column)` of the full tensor."""
    R, C = out.shape
    first = column // 4
    groups = torch.arange(first, (column + C + 3) // 4, device=out.device)  # columns / 4
    zero = torch.zeros((1, 1), dtype=torch.int64, device=out.device)
    step = max(1, _BLOCK // len(groups))
    for start in range(0, R, step):
        rows = torch.arange(start, min(start + step, R), device=out.device)[:, None] + row
        a, b, c, d = philox((groups, rows, zero, zero), key)  # (r, C/4) each
        values = torch.stack((*_normals(a, b), *_normals(c, d)), dim=-1).flatten(1)  # (r, C)
        out[start : start + step] = values[:, column - 4 * first :][:, :C].mul_(std).add_(mean)


def _key(seed: int, name: str) -> tuple[int, int]:
    digest = blake2b(name.encode(), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def _fill(parameter: Tensor, record: Sharding, key: tuple[int, int]) -> None:
    flat = parameter.view(-1)
    began = 0
    for box in record.boxes:
        columns, offset = box.size[-1], (0, *box.offset)
        part = flat[began : began + box.volume].view(-1, columns)
        if record.std:
            _draw(part, key, offset[-2], offset[-1], record.mean, record.std)
        else:
            part.fill_(record.mean)
        began += box.volume
    flat[began:] = 0  # padding


@torch.no_grad()
def initialise(module: nn.Module, seed: int) -> None:
    """Gives every declared parameter of a stage the initial values of its record, the same at every layout.

    A tied copy gets the values of the tensor it is tied to. Tensors have one or two dims.
    """
    for name, parameter, record in sharded_parameters(module):
        _fill(parameter, record, _key(seed, record.alias or name))
