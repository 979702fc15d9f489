"""Tokenizing with datatrove's own reader, tokenizer and local executor.

python prep_datatrove.py DIRECTORY_OF_JSONL OUT tokenizer.json TASKS WORKERS
"""

import sys

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer


def main() -> None:
    """Runs the pipeline."""
    corpus, out, tokenizer, tasks, workers = sys.argv[1:]
    pipeline = [
        JsonlReader(corpus),
        DocumentTokenizer(
            f"{out}/tokens",
            tokenizer_name_or_path=tokenizer,
            eos_token="<|endoftext|>",
            shuffle_documents=False,
        ),
    ]
    LocalPipelineExecutor(
        pipeline, tasks=int(tasks), workers=int(workers), logging_dir=f"{out}/logs", skip_completed=False
    ).run()


if __name__ == "__main__":
    main()
