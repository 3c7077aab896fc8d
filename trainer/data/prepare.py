"""`python -m trainer prepare`: text, JSONL, Parquet or a Hugging Face dataset into token shards with a manifest.

The inputs are cut into units that don't depend on the number of workers; each unit's shards depend on nothing else, so
a prepare that was killed goes on with the units that are missing, and ends with the same bytes as one that was not.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.data import inputs, manifest, tokenizer
from trainer.data.inputs import Unit
from trainer.data.manifest import Manifest
from trainer.data.progress import Progress
from trainer.data.shard_writer import PROGRESS, Options, Result, finished, merge_sources, write_unit
from trainer.data.storage import Folder, explained
from trainer.errors import ConfigError, DataError

_SHOWN = 10  # bad lines named at the end
_WORTH_A_WORKER = 2**22  # bytes of text
_UNIT_BYTES_PER_TOKEN = 4  # of text: about what one token of a large vocabulary stands for


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    dataset = None
    if options.dataset:
        dataset = inputs.open_dataset(options.dataset, split=options.split, text_key=options.text_key)
    elif not options.input:
        raise ConfigError("prepare: give INPUT files or folders, or --dataset NAME.")
    chosen = Options(
        tokenizer=tokenizer.load(options.tokenizer, separator=options.separator),
        text_key=options.text_key,
        split_share=_share(options.split_share),
        shard_tokens=_at_least_one("--shard-tokens", options.shard_tokens),
        skip_bad_lines=options.skip_bad_lines,
        output=options.output,
    )
    workers = None if options.workers is None else _at_least_one("--workers", options.workers)
    try:
        with _one_at_a_time(Folder(options.output)) as folder:
            units = inputs.plan(
                options.input,
                dataset,
                dataset_name=options.dataset or "",
                text_key=options.text_key,
                unit_bytes=chosen.shard_tokens * _UNIT_BYTES_PER_TOKEN,
            )
            prepare(folder, units, chosen, dataset=dataset, workers=workers or _worth(units))
    except KeyboardInterrupt:
        print("interrupted; the same command again goes on where this one was", file=sys.stderr, flush=True)
        return 130
    return 0


def prepare(folder: Folder, units: list[Unit], options: Options, *, dataset: Any, workers: int) -> Manifest:
    """Brings `folder` to a complete dataset. Raises DataError that names bad lines, files and what to do."""
    keys = [unit.fingerprint(options.key) for unit in units]
    request = hashlib.sha256(repr((keys, options.skip_bad_lines)).encode()).hexdigest()
    existing = manifest.find(folder)
    if existing is not None:
        if existing.request == request:
            print(f"{folder.url} is already prepared from these inputs and options", flush=True)
            return existing
        raise DataError(
            f"{folder.url} already holds a dataset of other inputs or options; name another --output, or remove it."
        )
    progress = Progress([unit.size for unit in units], sys.stdout)
    results: dict[int, Result] = {}
    for unit in units:
        earlier = finished(folder, unit, options)
        if earlier is not None:
            results[unit.index] = earlier
            progress.found(unit.index)
    missing = [unit for unit in units if unit.index not in results]
    for index, result in _work(missing, options, dataset, workers):
        results[index] = result
        progress.done(index, sum(shard.tokens for shard in result.shards))
    progress.close()
    return _complete(folder, [results[unit.index] for unit in units], options, request)


def _complete(folder: Folder, results: list[Result], options: Options, request: str) -> Manifest:
    bad = sum(result.bad for result in results)
    if bad:
        named = [problem for result in results for problem in result.problems][:_SHOWN]
        rest = f"\n… and {bad - len(named)} more" if bad > len(named) else ""
        listing = "\n".join(named) + rest
        if not options.skip_bad_lines:
            raise DataError(
                f"prepare: {bad} bad lines, so there is no dataset in {folder.url}; correct them, or leave them out "
                f"with --skip-bad-lines:\n{listing}"
            )
        print(f"skipped {bad} bad lines:\n{listing}", flush=True)
    shards = tuple(sorted((shard for result in results for shard in result.shards), key=lambda shard: shard.file))
    sources = tuple(merge_sources(results))
    if not any(shard.split == "training" for shard in shards):
        raise DataError("prepare: the inputs hold no document with text in it for the training part.")
    chosen = options.tokenizer
    made = Manifest(
        vocabulary=chosen.vocabulary,
        dtype=manifest.dtype_for(chosen.vocabulary),
        separator=chosen.separator,
        tokenizer=chosen.name,
        tokenizer_digest=chosen.digest,
        digest=manifest.data_digest(shards, separator=chosen.separator, tokenizer_digest=chosen.digest),
        request=request,
        shards=shards,
        sources=sources,
    )
    if chosen.definition is not None:
        folder.write("tokenizer.json", chosen.definition.encode())
    _remove_strays(folder, {shard.file for shard in shards})
    folder.write(manifest.FILE, manifest.encode(made))
    for name in sorted(folder.names(PROGRESS) if folder.remote else ()):
        folder.remove(f"{PROGRESS}/{name}")
    _report(made, folder)
    return made


def _remove_strays(folder: Folder, wanted: set[str]) -> None:
    """Shards of an earlier, interrupted prepare whose inputs have changed since."""
    for name in sorted(folder.names() - wanted):
        if name.endswith(".bin") and name.startswith(("training-", "held_out-")):
            folder.remove(name)


def _report(made: Manifest, folder: Folder) -> None:
    for split in ("training", "held_out"):
        shards = made.of("training" if split == "training" else "held_out")
        tokens, documents = sum(shard.tokens for shard in shards), sum(shard.documents for shard in shards)
        print(f"{split.replace('_', '-')}: {tokens:,} tokens, {documents:,} documents, {len(shards)} shards")
    empty = sum(source.empty for source in made.sources)
    if empty:
        print(f"left out {empty:,} documents without text")
    print(f"complete: {folder.url} (vocabulary {made.vocabulary}, {made.dtype}, digest {made.digest[:12]})", flush=True)


# ---- workers

_worker: dict[str, Any] = {}


def _work(units: list[Unit], options: Options, dataset: Any, workers: int) -> Iterator[tuple[int, Result]]:
    """(unit index, result) as they come. One worker needs no pool."""
    if workers == 1 or len(units) < 2:
        for unit in units:
            yield unit.index, write_unit(unit, options, dataset)
        return
    pool = ProcessPoolExecutor(
        min(workers, len(units)),
        mp_context=multiprocessing.get_context("spawn"),  # a fork would copy the tokenizer's threads half
        initializer=_start_worker,
        initargs=(options, dataset),
    )
    futures: dict[Future[Result], Unit] = {}
    try:
        futures = {pool.submit(_run, unit): unit for unit in units}
        for future in as_completed(futures):
            yield futures[future].index, future.result()
    except BrokenProcessPool:
        raise DataError(
            "prepare: a worker process was killed, most likely for lack of memory; run the same command again with "
            "fewer --workers or smaller --shard-tokens: what is finished is kept unless --shard-tokens changes."
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(options: Options, dataset: Any) -> None:
    # Ctrl-C reaches the whole group: the parent decides. A parent that is killed takes its workers with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker.update(options=options, dataset=dataset)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(unit: Unit) -> Result:
    return write_unit(unit, _worker["options"], _worker["dataset"])


@contextmanager
def _one_at_a_time(folder: Folder) -> Iterator[Folder]:
    """Creates the folder; on a disk, refuses a second prepare into it, and removes what a killed one left."""
    folder.create()
    if folder.remote:
        yield folder
        return
    progress = Path(folder.url, PROGRESS)
    with explained(str(progress), action="write"):
        progress.mkdir(exist_ok=True)
        lock = (progress / "lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"another prepare is writing to {folder.url}; wait for its end.") from None
        for scratch in progress.glob("unit-*-*/"):
            shutil.rmtree(scratch)
        yield folder
        if Path(folder.url, manifest.FILE).exists():
            shutil.rmtree(progress)


# ---- command line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer prepare",
        description="Turns text into token shards for training. Files: .jsonl, .ndjson, .parquet; anything else is "
        "plain text, one document a file; .gz and .zst are unpacked. Paths may be local, s3:// or gs://.",
        epilog="example: python -m trainer prepare corpus/*.jsonl --output data/corpus --tokenizer bytes",
        allow_abbrev=False,
    )
    parser.add_argument("input", nargs="*", metavar="INPUT", help="file, folder or URL")
    parser.add_argument("--output", required=True, metavar="DIR_OR_URL", help="where the dataset goes")
    parser.add_argument("--tokenizer", default="bytes", help="bytes, a tokenizer.json, a folder or a hub name")
    parser.add_argument("--separator", metavar="TOKEN", help="token that ends a document (default: its own)")
    parser.add_argument("--text-key", default="text", metavar="KEY", help="key or column of the text (default: text)")
    parser.add_argument(
        "--split-share", type=float, default=0.01, metavar="SHARE", help="held-out share of documents (default: 0.01)"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: one a core, fewer for little)")
    parser.add_argument(
        "--shard-tokens", type=int, default=2**25, metavar="N", help="tokens of a shard, about (default: 33554432)"
    )
    parser.add_argument("--skip-bad-lines", action="store_true", help="leave out and count what is no document")
    parser.add_argument("--dataset", metavar="NAME", help="Hugging Face dataset: a save_to_disk folder or a hub name")
    parser.add_argument("--split", default="train", help="split of --dataset (default: train)")
    return parser


def _worth(units: list[Unit]) -> int:
    """As many workers as there are cores, if each has enough to do to be worth its start."""
    return max(1, min(os.cpu_count() or 1, sum(unit.size for unit in units) // _WORTH_A_WORKER))


def _share(value: float) -> float:
    if not 0 <= value < 1:
        raise ConfigError(f"--split-share must be from 0 to below 1, not {value}.")
    return value


def _at_least_one(option: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"{option} must be at least 1, not {value}.")
    return value
