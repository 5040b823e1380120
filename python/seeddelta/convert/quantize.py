"""The whole way from an original model to a SeedΔ file in one call: measured and encoded block by block.

For each group of blocks (calibrate/groups.py): the text goes through them, the covariances of their inputs are summed
and written, their matrices are encoded, the covariances are deleted; their outputs are the next group's input. So
memory holds one group, its covariances and the matrix that is being encoded; the disk has the text's hidden states.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..calibrate.capture import Capture, capture
from ..calibrate.covariance import open_covariance, warn_of_zeros, write_covariance
from ..calibrate.engine import BlockEngine
from ..calibrate.gradient import capture_gradient
from ..calibrate.groups import Group, find_groups
from ..calibrate.passes import pass_jobs
from ..calibrate.states import States
from ..calibrate.sums import PassSums
from ..calibrate.text import Texts, Windows, read_texts, text_files
from ..errors import ImatrixError, RecipeError
from ..gguf import names
from ..gguf.source import file_stamp, open_source
from ..processors import processors
from ..settings.calibration import CHUNKS
from ..settings.tree import guarded
from ..storage.checkpoint import Store
from .estimate import Estimate, estimate
from .executors import Pool, map_in_order, open_pool
from .jobs import encoder_identity, forget, run_pass
from .journal import Journal
from .memory import jobs_within, ram_bytes, sums_bytes, sums_limit, wanted_inputs, warn_too_large
from .metadata import calibration_metadata
from .parts import Part, load_part, open_parts
from .pipeline import check_space, encode_all, finish, hash_in_background, planned_report
from .plan import Plan, make_plan
from .prices import price
from .quality import AUTO, Quality, chosen, with_possible_gradient, without_sequential
from .recipe import Recipe, with_rate
from .report import BuildReport
from .sequential import SequentialGroups

_FOLDER = "blocks"  # in the folder of the finished tensors: hidden states, a group's covariances, what is done


def quantize(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    bits: float | None = None,
    size: str | None = None,
    preset: str | None = None,
    quality: Quality = "normal",
    text: Texts = None,
    chunks: int | None = CHUNKS,
    ctx: int = 512,
    ram: str = "8G",
    threads: int = 0,
    executor: Executor | str | None = None,
    dry_run: bool = False,
    progress: bool = True,
    **options: Any,
) -> BuildReport:
    """Calibrate a model on a text and encode it, one layer after the other.

    A run that was stopped resumes. The bytes of the output do not depend on `ram`, `threads` and `executor`.

    Args:
        model: GGUF file, folder of safetensors, or owner/name[:file-or-type] on the Hugging Face hub.
        output: SeedΔ file to write.
        bits: bits per weight of all matrices.
        size, preset: size of the file at most, such as "90M"; "tiny", "small", "balanced" (the default) or "large".
        quality: "fast", "normal", or "best": sequential calibration and gradients where the model allows them; a
            CalibrationWarning says where it does not.
        text: calibration text, a file or several, which have equal parts; "package", as None, is that of the package.
        chunks, ctx: chunks of `ctx` tokens, taken from all over the text; None: all of it.
        ram: memory to use at most; a matrix that takes more to be encoded gives a MemoryWarning.
        threads: 0: all cores.
        executor: as of `Recipe`, or any of `concurrent.futures`; a worker that dies costs its job only.
        dry_run, progress: only report what would be done; draw a progress bar on stderr.
        options: other settings of `Recipe` (targets, layers, effort, gradient, converter, …), and `calibrate`, "dense"
            or "sequential". Those given win over what `quality` stands for.
    Raises:
        MissingFileError, SourceModelError, FormatError, HubError: the model cannot be read or converted.
        RecipeError, ImatrixError, EvaluationError, OutputError: the options, the memory, the text or the output.

    Examples:
        >>> report = seeddelta.quantize("model-f16.gguf", "model.seeddelta.gguf", bits=4, quality="best")
        >>> print(report.bits_per_weight, report.file_bytes)
    """
    # llama.cpp's threads spin between its steps and keep the sums waiting; OpenMP reads this once, when it is loaded
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    started = time.perf_counter()
    named = {"bits": bits, "size": size, "preset": preset, "threads": threads, "dry_run": dry_run}
    options |= {name: value for name, value in named.items() if value is not None}
    calibrate = options.pop("calibrate", None)
    if_possible = calibrate is None
    calibration, options = chosen(quality, calibrate, options)
    if isinstance(executor, str):
        options["executor"], executor = executor, None
    with ExitStack() as stack:
        given = stack.enter_context(_recipe(Path(model), Path(output), options).with_dense_input(progress=progress))
        given = with_possible_gradient(given, ctx)
        texts = text_files(text)
        recipe, plan, windows = _prepared(given, texts, ctx, chunks, ram_bytes(ram))
        if recipe.dry_run:
            return planned_report(recipe, plan, started)
        stack.enter_context(guarded(recipe.model_copy(update={"hessian": None}), [*texts, given.input]))  # made later
        check_space(recipe, plan)
        stack.callback(forget)
        hashed = hash_in_background(plan, stack)
        checkpoint = stack.enter_context(open_parts(recipe.output, recipe.parts_folder, resume=recipe.resume))
        checkpoint.keep_only(set(plan.targets))
        identity = _identity(given, windows, calibration)
        journal = stack.enter_context(Journal(checkpoint.folder / _FOLDER, identity, tell=progress))
        pool = stack.enter_context(open_pool(recipe.executor, recipe.threads, executor))
        memory = ram_bytes(ram) // pool.jobs_here
        warn_too_large(plan, memory)
        gradient_texts = texts if given.gradient == AUTO else []
        work = _Work(recipe, plan, windows, checkpoint, journal, memory, pool, calibration, if_possible, gradient_texts)
        parts, restored = work.run(progress)
        report = finish(
            work.recipe, work.plan, parts, hashed, checkpoint, started=started, restored=restored,
            more=calibration_metadata(windows, work.calibrate),
        )  # fmt: skip
        journal.finish()
    return report


def estimate_quantize(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    text: Texts = None,
    ctx: int = 512,
    chunks: int | None = CHUNKS,
    ram: str = "8G",
    quality: Quality = "normal",
    **options: Any,
) -> Estimate:
    """Time, memory and disk that `quantize` will take with these arguments; one chunk is measured to know."""
    calibration, options = chosen(quality, options.pop("calibrate", None), options)
    with _recipe(Path(model), Path(output), options).with_dense_input(progress=False) as given:
        memory = ram_bytes(ram)
        recipe, plan, windows = _prepared(with_possible_gradient(given, ctx), text_files(text), ctx, chunks, memory)
        return estimate(recipe, plan, windows, memory, calibration)


def _prepared(
    recipe: Recipe, texts: list[Path], ctx: int, chunks: int | None, ram: int
) -> tuple[Recipe, Plan, Windows]:
    """As far as it goes before anything is measured: gradients that are to be are left out.

    Threads without a number of jobs become as many jobs as the memory allows: of small matrices most of the work is one
    thread's.
    """
    automatic = recipe.gradient == AUTO
    recipe = recipe.model_copy(update={"gradient": None}) if automatic else recipe
    windows = read_texts(open_source(recipe.input).path, texts, ctx, chunks)
    plan = make_plan(recipe, measured=False, counts=windows.counts)
    if recipe.executor == "threads":
        jobs = jobs_within(plan, ram, recipe.threads or processors())
        recipe = recipe.model_copy(update={"executor": f"threads:{jobs}"})
    return recipe, plan, windows


def _recipe(model: Path, output: Path, options: Mapping[str, Any]) -> Recipe:
    if options.get("hessian") is not None or options.get("no_checkpoint"):
        raise RecipeError("hessian and no_checkpoint are for build; quantize measures the covariance itself")
    options = with_rate(options)
    recipe = Recipe(input=model, output=output, **options)
    assert recipe.parts_folder is not None
    hessian = recipe.parts_folder / _FOLDER / "covariance.gguf"
    return Recipe(input=model, output=output, **(dict(options) | {"hessian": hessian}))


def _identity(recipe: Recipe, windows: Windows, calibrate: str) -> dict[str, Any]:
    return {
        "encoder": encoder_identity(),
        "model": file_stamp(recipe.input),
        "windows": windows.identity(),
        "calibrate": calibrate,
        "recipe": recipe.provenance(),
    }


@dataclass
class _Work:
    recipe: Recipe
    plan: Plan
    windows: Windows
    checkpoint: Store
    journal: Journal
    ram: int  # of a job
    pool: Pool
    calibrate: str
    if_possible: bool  # the calibration is that of a quality, which may be another where the model does not allow it
    gradient_texts: list[Path]  # that gradients are measured on

    def run(self, progress: bool) -> tuple[dict[str, Part], int]:
        """Parts of all targets, and how many of them an earlier run had made."""
        from ..progress import tqdm

        groups = self.journal.groups
        if groups is None:
            groups = find_groups(self.plan.source, self.windows.tokens[0], self.recipe.threads) or []
            if not groups and self.calibrate == "sequential":
                self.calibrate = without_sequential(self.plan.source.path, self.if_possible)
            self.journal.begin(groups)
        if self.gradient_texts:
            self._measure_gradient(progress)
        parts = self._restored()
        restored = len(parts)
        sizes = {name: description.weights for name, description in self.plan.targets.items()}
        done = sum(sizes[name] for name in parts)
        with tqdm(
            total=sum(sizes.values()), initial=done, unit="w", unit_scale=True, desc="quantize", disable=not progress,
            smoothing=0,
        ) as bar:  # fmt: skip
            way = self._whole(bar) if not groups else self._blocks(groups, bar)
            if groups and self.calibrate == "sequential":
                way = self._sequential(groups, bar)
            for step, (made, found) in enumerate(way):
                parts |= made
                restored += found
                bar.update(sum(sizes[name] for name in made))
                self.journal.done(step, {name: part.record.key for name, part in made.items()})
        missing = [name for name in self.plan.targets if name not in parts]
        if missing:  # blocks that no text goes through
            made, found = self._encode(missing, None)
            parts |= made
            restored += found
        return parts, restored

    def _measure_gradient(self, progress: bool) -> None:
        path = self.journal.folder / "gradient.gguf"
        if not path.is_file():
            capture_gradient(
                self.recipe.input, self.gradient_texts, path, ctx=self.windows.ctx, threads=self.recipe.threads,
                price=partial(price, recipe=self.recipe), progress=progress,
            )  # fmt: skip
        self.recipe = self.recipe.model_copy(update={"gradient": path})
        self.plan = make_plan(self.recipe, measured=False, counts=self.windows.counts)

    def _restored(self) -> dict[str, Part]:
        """Parts of the groups that are done; when one is damaged all is measured again (whole parts are used)."""
        parts = {name: load_part(self.checkpoint, name, key) for name, key in self.journal.keys.items()}
        groups, done = self.journal.groups or [], self.journal.steps_done
        engines = self._engines(groups) if 0 < done < len(groups) else []
        states = [one for engine in engines for one in self._states(engine, groups[done])]
        if any(part is None for part in parts.values()) or not all(one.path.is_file() for one in states):
            self.journal.forget()
            return {}
        return {name: part for name, part in parts.items() if part is not None}

    def _blocks(self, groups: list[Group], bar: Any) -> Iterator[tuple[dict[str, Part], int]]:
        """Measure and encode the groups that are not done."""
        (engine,) = self._engines(groups)
        wanted = [[name for name in engine.matrices(group) if name in self.plan.targets] for group in groups]
        for number, group in enumerate(groups):
            if number < self.journal.steps_done:
                yield {}, 0
                continue
            if not any(wanted[number:]):
                return
            made: dict[str, Part] = {}
            found = 0
            passes = wanted_inputs(engine, group, wanted[number], sums_limit(self.plan.source, group, self.ram))
            for turn, summed in enumerate(passes):
                bar.set_postfix_str(f"measure block {group.first}", refresh=True)
                self._measure(engine, group, summed, keep=turn == 0)
                if not summed:
                    continue
                bar.set_postfix_str(f"encode block {group.first}", refresh=True)
                parts, reused = self._encode(summed, self.recipe.hessian)
                made |= parts
                found += reused
            yield made, found
            for states in self._states(engine, group):
                states.remove()

    def _measure(self, engine: BlockEngine, group: Group, summed: list[str], *, keep: bool) -> None:
        """The text through a group; the covariances are written."""
        jobs = pass_jobs(engine, group, summed, keep=keep, threads=self.pool.threads)
        with PassSums(engine.folder) as sums:
            for _, record in map_in_order(self.pool, run_pass, jobs):
                if record is not None:
                    sums.add(record)
            if summed:
                self._write(engine.capture(sums, ""))

    def _engines(self, groups: list[Group]) -> list[BlockEngine]:
        """One for every stream of hidden states."""
        streams = ("dense", "encoded") if self.calibrate == "sequential" else ("dense",)
        return [
            BlockEngine(
                self.plan.source, self.windows, groups, self.journal.folder, threads=self.recipe.threads, stream=stream
            )
            for stream in streams
        ]

    def _states(self, engine: BlockEngine, group: Group) -> list[States]:
        """Hidden states that go into a group."""
        whole = self.calibrate == "sequential"
        return [engine.states_before(group.first)] if whole else engine.range_states(group.first)

    def _sequential(self, groups: list[Group], bar: Any) -> Iterator[tuple[dict[str, Part], int]]:
        """The same on what the encoded blocks before give."""
        engines = self._engines(groups)
        reused = 0

        def encode(targets: list[str], captured: Capture, path: Path | None) -> dict[str, Part]:
            nonlocal reused
            bar.set_postfix_str(f"encode {targets[0].removesuffix('.weight')}", refresh=True)
            self._write(captured)
            changed = set() if path is None else set(open_source(path).tensors)
            parts: dict[str, Part] = {}
            for mine, source in (
                ([n for n in targets if n in changed], path),
                ([n for n in targets if n not in changed], None),
            ):
                if mine:
                    made, found = self._encode(mine, self.recipe.hessian, source)
                    parts |= made
                    reused += found
            return parts

        streams = SequentialGroups(
            engines[0], engines[1], encode, self.recipe.threads, sums_limit(self.plan.source, groups[0], self.ram) // 2
        )
        for number, group in enumerate(groups):
            if number < self.journal.steps_done:
                yield {}, 0
                continue
            reused = 0
            made = streams.run(group, [name for name in engines[0].matrices(group) if name in self.plan.targets])
            yield made, reused
            for states in (one for engine in engines for one in self._states(engine, group)):
                states.remove()

    def _whole(self, bar: Any) -> Iterator[tuple[dict[str, Part], int]]:
        """The same in passes of the whole model, each for as many layers as the memory allows."""
        source = self.plan.source
        limit = sums_limit(source, None, self.ram)
        layers: dict[int, list[str]] = {}
        for name in self.plan.targets:
            place = names.split_name(name)
            layers.setdefault(source.n_layers or 0 if place is None else place[0], []).append(name)
        turns: list[list[str]] = []
        for layer in sorted(layers):
            fits = turns and sums_bytes(source, [*turns[-1], *layers[layer]]) <= limit
            turns[-1:] = [turns[-1] + layers[layer]] if fits else [*turns[-1:], layers[layer]]
        for number, turn in enumerate(turns):
            if number < self.journal.steps_done:
                yield {}, 0
                continue
            if sums_bytes(source, turn) > limit:
                raise ImatrixError(
                    f"{source.path}: the covariances of {turn[0]} and its like do not fit the memory; give more --ram"
                )
            bar.set_postfix_str(f"measure {turn[0]}", refresh=True)
            captured = capture(
                source.path, self.windows.tokens.ravel(), ctx=self.windows.ctx, threads=self.recipe.threads,
                only=turn, progress=False,
            )  # fmt: skip
            self._write(captured)
            yield self._encode(turn, self.recipe.hessian)

    def _write(self, captured: Capture) -> None:
        assert self.recipe.hessian is not None
        write_covariance(
            self.recipe.hessian,
            replace(captured, text_name=self.windows.name, text_sha256=self.windows.sha256, model_sha256=""),
        )
        warn_of_zeros(self.recipe.hessian, self.plan.source.path)

    def _encode(
        self, targets: list[str], hessian: Path | None, changed: Path | None = None
    ) -> tuple[dict[str, Part], int]:
        """Encode some targets, of the model or of the file `changed`."""
        plan = replace(
            self.plan,
            covariance=None if hessian is None else open_covariance(hessian),
            targets={name: self.plan.targets[name] for name in targets},
            recipes={name: self.plan.recipes[name] for name in targets},
        )
        recipe = self.recipe.model_copy(update={"hessian": hessian, "input": changed or self.recipe.input})
        plan = plan if changed is None else replace(plan, source=open_source(changed))
        try:
            return encode_all(recipe, plan, self.checkpoint, self.pool, progress=False)
        finally:
            forget(gradient=False)
