"""
Compiled core of seeddelta: encoders, kernels and the graph hook.
"""
from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import os
import pathlib
import typing
__all__: list[str] = ['AttentionRun', 'CaptureHook', 'ColumnWeight', 'Gate', 'GraphHook', 'LaneCode', 'LoadedGgml', 'Options', 'OwnAttention', 'PRNG_BLOCK_STD', 'Proof', 'ProvenGate', 'ServedModel', 'StubFile', 'Weight', 'WeightRegistry', 'base_values', 'check_loadable', 'columns_lanes_encode', 'coo_select', 'ggml_required_symbols', 'ggml_symbols', 'is_matrix', 'isa_active', 'isa_available', 'isa_select', 'lane_blocks', 'lane_codes', 'lanes_encode', 'metrics', 'prng_block_values', 'read_header', 'rotate', 'seed_search']
class Gate:
    """
    What chooses the inputs that a token computes: StatePack's bitmap, then KWTA among what passes.

    Args:
        settings: of skipping, by their full names such as kwta.k (docs/guide/skipping.md), for a matrix ffn_down
            alone. A failed check of events holds for a while only (force), and prompts are skipped in, too
            (skip_prompt).
        norm: [n_in], of the weight's columns; none: ones.
        threshold: 0 or more: KWTA keeps the scores above it, however many.
    Raises ValueError for settings that cannot be.
    """
    def __init__(self, n_in: typing.SupportsInt | typing.SupportsIndex, settings: collections.abc.Mapping[str, typing.Any], *, norm: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = [], threshold: typing.SupportsFloat | typing.SupportsIndex = -1.0) -> None:
        ...
    def select(self, x: typing.Annotated[numpy.typing.ArrayLike, numpy.float32]) -> list[numpy.typing.NDArray[numpy.int32]]:
        """
        Indices chosen for each row of x, float32 [n_tokens, n_in], one token after the other: int32 arrays.
        """
class ColumnWeight:
    """
    A matrix stored by its inputs: all weights of one input are together, so that inputs can be skipped.

    Args:
        matrix: float32 [n_out, n_in], rounded to float16.
        signs: a ternary matrix beside it, for gates with state_pack_mlp.aggressive.
    Raises ValueError naming the tensor.
    """
    def __init__(self, name: str, matrix: typing.Annotated[numpy.typing.ArrayLike, numpy.float32], *, signs: bool = False) -> None:
        ...
    def matmul(self, x: typing.Annotated[numpy.typing.ArrayLike, numpy.float32], gate: Gate | None = None, *, threads: typing.SupportsInt | typing.SupportsIndex = 1, batch: typing.SupportsInt | typing.SupportsIndex = 0) -> numpy.typing.NDArray[numpy.float32]:
        """
        y = x Wᵀ over the inputs that the gate chooses: float32 [n_tokens, n_in] to float32 [n_tokens, n_out].

        `batch` tokens are one product (0: all). The bits are those of all inputs with those not chosen set to 0,
        for every instruction set, number of threads and batch shape.
        """
    @property
    def n_in(self) -> int:
        ...
    @property
    def n_out(self) -> int:
        ...
    @property
    def name(self) -> str:
        ...
class LaneCode:
    """
    A code of base kind lanes (docs/reference/format.md), one of lane_codes().
    """
    def lines(self, n_in: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Lines of 64 bytes that a tile of 16 rows has.
        """
    def stream_steps(self, n_in: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Steps of a stream.
        """
    @property
    def added(self) -> list[int]:
        """
        What the bit of each plane adds to a value.
        """
    @property
    def bits(self) -> float:
        """
        Bits a weight.
        """
    @property
    def column_lines(self) -> int:
        """
        Bytes of a stream in column layout.
        """
    @property
    def deviation(self) -> float:
        """
        Standard deviation of the weights in units of the tables.
        """
    @property
    def emits(self) -> list[int]:
        """
        Values of each step of the pattern: 1 to 4.
        """
    @property
    def number(self) -> int:
        """
        What files call it.
        """
    @property
    def tables(self) -> numpy.typing.NDArray[numpy.int8]:
        """
        int8 [values of the pattern, 2 (A and B), 16].
        """
    @property
    def values_with_bits(self) -> int:
        """
        How many values of the pattern, from the first on, have bits of the planes.
        """
class Weight:
    """
    One converted matrix: arrays of a SeedΔ file and the product with it.

    Ŵ = row_scale · (base_scale · v · R + Δ), docs/reference/format.md. The arrays are kept, not copied; names, shapes,
    dtypes and index ranges are checked here and a wrong one raises ValueError naming the tensor.

    Args:
        n_experts: matrices of [n_out, n_in]; arrays hold the rows (tiles of codes, columns) of one after those of another.
        layout: "row", or "column" for lanes whose codes are uint8 [n_in, streams, lines] in the order of strips, and
            row_scale [n_in].
        arrays: by the suffix that files call them by:
            codes: uint8 or int8 [ceil(n_out / 16), lines, 64], for base_kind 2 (lanes) and the code of the number
                lane_code.
            row_scale: float16 or float32 [n_out]; every weight has it.
            column_scale: int8 [n_in]; input i is multiplied by 2^(column_scale[i] / 8) before the rotation.
            d_idx, d_val, d_scale: coo residual; (u)int16 or (u)int32 [n_out, K], float16 or int8
                [n_out, K], float16 [n_out] (with int8 only).
            b_map, b_val, b_scale: block residual; (u)int16 [n_out, kept] ascending, float16 or int8
                [n_out, kept, 32 or 64], float16 [n_out, kept] (with int8 only).
            r_dict, r_codes, r_vals: codebook residual; float16 [M, n_in], (u)int16 and float16 [n_out, k].
            p_map, p_val, p_scale: kept blocks of proc_sparse; (u)int8 [n_out, ceil(blocks / 8)] a bit a block, int8
                [n_out, kept, 32 or 64], float16 [n_out]. A base prng_block is then 0 outside of them.
            seed_idx, seed_gain: chosen seeds of prng_block; (u)int16 [n_out], or (u)int16 and int8
                [n_out, ceil(n_in / base_block)].
    """
    def __init__(self, name: str, n_out: typing.SupportsInt | typing.SupportsIndex, n_in: typing.SupportsInt | typing.SupportsIndex, *, base_kind: typing.SupportsInt | typing.SupportsIndex, base_seed: typing.SupportsInt | typing.SupportsIndex = 0, base_scale: typing.SupportsFloat | typing.SupportsIndex = 0.0, base_block: typing.SupportsInt | typing.SupportsIndex = 64, rotation_block: typing.SupportsInt | typing.SupportsIndex = 0, lane_code: typing.SupportsInt | typing.SupportsIndex = -1, fine_code: typing.SupportsInt | typing.SupportsIndex = -1, n_experts: typing.SupportsInt | typing.SupportsIndex = 1, layout: str = 'row', arrays: collections.abc.Mapping[str, numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]]) -> None:
        ...
    def dequantize(self, row_begin: typing.SupportsInt | typing.SupportsIndex = 0, row_end: typing.SupportsInt | typing.SupportsIndex = -1) -> numpy.typing.NDArray[numpy.float32]:
        """
        Rows [row_begin, row_end) of Ŵ, float32 [rows, n_in]; row_end -1 is n_experts · n_out.
        """
    def input_norms(self) -> numpy.typing.NDArray[numpy.float32]:
        """
        Norms of the columns of one matrix, float32 [n_in]; in column layout those that the scales say.
        """
    def matmul(self, x: typing.Annotated[numpy.typing.ArrayLike, numpy.float32], threads: typing.SupportsInt | typing.SupportsIndex = 1, expert: typing.SupportsInt | typing.SupportsIndex = 0, *, gate: Gate | None = None, batch: typing.SupportsInt | typing.SupportsIndex = 0) -> numpy.typing.NDArray[numpy.float32]:
        """
        y = x Ŵᵀ with int8 activations: float32 [n_tokens, n_in] to float32 [n_tokens, n_out].

        The same bits for every instruction set, number of threads and batch shape. Of proc_sparse a gate may
        choose inputs, token by token when `batch` is 1: the bits are those of all inputs with the others 0.
        """
    def multiply_active(self, x: typing.Annotated[numpy.typing.ArrayLike, numpy.float32], index: typing.Annotated[numpy.typing.ArrayLike, numpy.int32]) -> numpy.typing.NDArray[numpy.float32]:
        """
        y = Ŵ x over the units of `index`, int32 [n] ascending, in column layout: float32 [n_in] to [n_out].

        The bits of matmul with x = 0 for the other units.
        """
    def prefetch(self) -> bool:
        """
        Asks the memory for the first codes that matmul will read, without waiting. False when there are none.
        """
    @property
    def layout(self) -> str:
        ...
    @property
    def n_experts(self) -> int:
        ...
    @property
    def n_in(self) -> int:
        ...
    @property
    def n_out(self) -> int:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def nbytes(self) -> int:
        """
        Bytes of all arrays.
        """
class LoadedGgml:
    """
    The loaded ggml: its layout, learned by probing its public functions, and whether it computes as expected.

    Args:
        symbols: addresses of ggml_symbols(), those that there are.
    Raises RuntimeError saying which probe failed, or which operation is not computed as it should be.
    """
    def __init__(self, symbols: collections.abc.Mapping[str, typing.SupportsInt | typing.SupportsIndex]) -> None:
        ...
    def layout(self) -> dict[str, int]:
        """
        Offsets in bytes inside ggml_tensor and numbers of operations.
        """
    def placeholder_type(self, n_in: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        The smallest ggml type for a placeholder of so many columns.
        """
    @property
    def self_tests(self) -> int:
        """
        Operations that were compared with ggml's own: four, with attention five.
        """
class AttentionRun:
    """
    Attention on arrays; keeps the bits of one token's keys.
    """
    def __call__(self, q: typing.Annotated[numpy.typing.ArrayLike, numpy.float32], k: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], v: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], mask: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]] | None = None, *, scale: typing.SupportsFloat | typing.SupportsIndex = 1.0, max_bias: typing.SupportsFloat | typing.SupportsIndex = 0.0, softcap: typing.SupportsFloat | typing.SupportsIndex = 0.0, sinks: typing.Annotated[numpy.typing.ArrayLike, numpy.float32] | None = None, threads: typing.SupportsInt | typing.SupportsIndex = 1, pack: collections.abc.Mapping[str, typing.Any] = {}, repack: bool = False, compare: bool = False, v_by_channel: bool = False, event: collections.abc.Mapping[str, typing.Any] = {}, written: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = []) -> tuple[numpy.typing.NDArray[numpy.float32], dict[str, float]]:
        """
        q float32[n_head, dim_k], k float16[n_kv, n_kv_head, dim_k], v float16[n_kv, n_kv_head, dim_v], mask
        float16 or float32[n_kv] (0, a bias, or -inf), sinks float32[n_head]. k and v are uint8 for the bytes of
        Q8_0; with `v_by_channel` v is float16[n_kv_head, dim_v, n_kv]. With `pack`, settings of
        state_pack_kv by their own names (layers: of layer 2), keys are chosen by their bits, which are made at
        the first call and with `repack`; `compare` gives the exact result, and how far the other one was. With
        `event`, settings of event by their own names, only windows of 128 positions are computed that have
        changed since earlier calls, of which the rows `written` tell what is new. Returns (float32[n_head,
        dim_v], what was done). Raises ValueError for shapes that do not fit.
        """
    def __init__(self) -> None:
        ...
    def batch(self, q: typing.Annotated[numpy.typing.ArrayLike, numpy.float32], k: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], v: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], mask: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], *, scale: typing.SupportsFloat | typing.SupportsIndex = 1.0, threads: typing.SupportsInt | typing.SupportsIndex = 1) -> numpy.typing.NDArray[numpy.float32]:
        """
        Attention of several tokens in several caches to all keys.

        q float32[n_stream, n_query, n_head, dim_k], k and v float16[n_stream, n_kv, n_kv_head, dim], mask
        float16[n_stream, n_query, n_kv]. Returns float32[n_stream, n_query, n_head, dim_v]: of every token the
        same bits whatever the others are, of up to 16 a stream those that it gets alone. Raises ValueError for shapes that do not fit.
        """
class WeightRegistry:
    """
    The converted weights of one file; contexts of the same model may share it.
    """
    def __init__(self, ggml: LoadedGgml) -> None:
        ...
    def add(self, weight: Weight | ColumnWeight) -> None:
        """
        Registers a weight and keeps it alive. Add all before making a GraphHook.
        """
class GraphHook:
    """
    The native cb_eval of one llama context. Must outlive the context.

    `callback` and `user_data` are the values for llama_context_params.cb_eval and cb_eval_user_data.
    """
    def __init__(self, registry: WeightRegistry) -> None:
        ...
    def column_shapes(self) -> dict[str, tuple[int, int]]:
        """
        (n_out, n_in) of the weights that are stored by columns.
        """
    def counters(self) -> dict[str, dict[str, int]]:
        """
        Per weight: rewrites, calls, tokens, reused, rows, experts, dense_calls, nonfinite_events, active_inputs,
        skipped_inputs since the hook was made.
        """
    def pause_gates(self, features: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        What all gates leave out from now on, a sum of 1 (KWTA), 2 (StatePack), 4 (events) and 8 (zeros). Not while a
        product is computed.
        """
    def profile_gates(self, on: bool) -> None:
        """
        Start new profiles, or stop. Meanwhile KWTA keeps everything. Not while a product is computed.
        """
    def profiles(self) -> list[tuple[int, list[float], list[float], float]]:
        """
        Per gate: tokens seen, and for each fraction 1/20, 2/20 .. 1 of the units the mean score of the last one kept
        and the mean share of the squares of the scores that is left out; and the mean share of the scores that are 0.
        """
    def take_error(self) -> tuple[str, str, str] | None:
        """
        (kind, tensor, text for people) of the first error since the last call, or None. Kinds: not_served, layout,
        not_finite, dense_not_finite, bad_index, no_memory.
        """
    def tune_gate(self, number: typing.SupportsInt | typing.SupportsIndex, keep: typing.SupportsFloat | typing.SupportsIndex, threshold: typing.SupportsFloat | typing.SupportsIndex = -1.0) -> None:
        """
        What KWTA keeps from now on: a fraction, or (0 or more) the scores above a threshold. Not while a product is
        computed.
        """
    @property
    def callback(self) -> int:
        ...
    @property
    def nodes_seen(self) -> int:
        ...
    @property
    def user_data(self) -> int:
        ...
class ProvenGate:
    """
    One kind of gate, of all matrices or layers together.

    `count` is of what it has chosen for and `given_up` of the places whose errors have switched them off, both
    since loading; `pause` leaves it out, or not, from the next token on. `key` begins its metrics; `name` and,
    for those places, `remedy` are told to people. `run` tokens with, or without it, follow each other.
    """
    def __init__(self, key: str, name: str, count: collections.abc.Callable[[], typing.SupportsInt | typing.SupportsIndex], pause: collections.abc.Callable[[bool], None], given_up: collections.abc.Callable[[], typing.SupportsInt | typing.SupportsIndex], places: collections.abc.Callable[[], typing.SupportsInt | typing.SupportsIndex], run: typing.SupportsInt | typing.SupportsIndex = 1, remedy: str = '--force keeps it on') -> None:
        ...
class Proof:
    """
    The trials of the gates of a context and its attention, and of more, one after the other: those that are on
    meanwhile stay on.
    """
    def __bool__(self) -> bool:
        """
        Whether there are gates.
        """
    def __init__(self, hook: GraphHook, more: collections.abc.Sequence[ProvenGate] = []) -> None:
        ...
    def begin(self) -> None:
        """
        Before a token is computed alone.
        """
    def cancel(self) -> None:
        """
        Where it could not be computed.
        """
    def end(self, seconds: typing.SupportsFloat | typing.SupportsIndex) -> list[str]:
        """
        After it; returns lines for people.
        """
    def metrics(self) -> dict[str, int | float]:
        """
        Of each gate `X.off` (0: on, 1: it saves too little, 2: its errors are too large), `X.off_places` (where
        its error was too large), `X.saving` (share of a token's time, 0 until it is known) and `X.trial_tokens`.
        """
    def reasons(self) -> dict[str, str]:
        """
        Why gates were switched off, by key.
        """
class CaptureHook:
    """
    A native cb_eval that sums statistics of the inputs of matrices, for one llama context that it must outlive.

    Args:
        names: matrices whose inputs are wanted.
        covariance: also sum x̂ x̂ᵀ, x̂ = x / |x| · sqrt(n_in), float32 [n_in, n_in] an input.
        threads: of the sums; 0 is all processors. They do not depend on it.
        taken: nodes whose values `values` gives, and matrices whose inputs it gives.
    """
    def __init__(self, ggml: LoadedGgml, names: collections.abc.Sequence[str], covariance: bool = True, threads: typing.SupportsInt | typing.SupportsIndex = 0, taken: collections.abc.Sequence[str] = []) -> None:
        ...
    def counts(self, name: str) -> numpy.typing.NDArray[numpy.int64]:
        """
        Inputs in the sums, int64 [n_experts]; [1] for any other matrix.
        """
    def covariance(self, name: str) -> numpy.typing.NDArray[numpy.float32]:
        """
        Sum of x̂ x̂ᵀ, float32 [n_in, n_in]; of experts that of all together.
        """
    def covariance_rows(self, name: str, begin: typing.SupportsInt | typing.SupportsIndex, end: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.float32]:
        """
        Rows of it, float32 [end - begin, n_in].
        """
    def nonfinite_tokens(self, name: str) -> int:
        """
        Tokens left out because their input held NaN or infinity.
        """
    def norm_square(self, name: str) -> numpy.typing.NDArray[numpy.float64]:
        """
        Sum of x̂², as `square`.
        """
    def square(self, name: str) -> numpy.typing.NDArray[numpy.float64]:
        """
        Sum of x², float64 [n_experts, n_in]; [1, n_in] for any other matrix.
        """
    def stop_after(self, name: str) -> None:
        """
        Leaves out the rest of every graph, once the values of this one of `taken` are copied.
        """
    def tokens(self, name: str) -> int:
        ...
    def values(self, name: str) -> numpy.typing.NDArray[numpy.float32]:
        """
        float32 [rows, columns] of one of `taken` in the last evaluation: rows are tokens.
        """
    @property
    def callback(self) -> int:
        ...
    @property
    def error(self) -> str:
        """
        Empty, or what went wrong.
        """
    @property
    def order(self) -> list[str]:
        """
        The representatives in the order of the graph.
        """
    @property
    def representatives(self) -> dict[str, str]:
        """
        Matrix -> the matrix under whose name the sums of the same input stand.
        """
    @property
    def user_data(self) -> int:
        ...
class Options:
    """
    Settings of the run time (RuntimeConfig), for a model and its contexts.

    Args:
        values: text of each setting that is not its default, by its name, such as event.delta_theta.
        skip_path, skip_json: the path and, in JSON, the content of the file of kwta.file; empty: none.
    Raises ValueError for a value that cannot be, and for settings that contradict each other.
    """
    def __init__(self, values: collections.abc.Mapping[str, bytes] = {}, skip_path: str = '', skip_json: str = '') -> None:
        ...
class StubFile:
    """
    A GGUF file in memory with the metadata of a model, but for the keys seeddelta.*. Placeholders are put last.

    Args:
        kept: names of its tensors, and of those of the model whose data they have.
        given: ggml type and shape (rows first) of other tensors, and their data, C-contiguous. None: a placeholder.
        changed: values of metadata that differ, as bytes (the type's word first), None for keys that are left out.
    Raises OutputError when there is no memory or disk space for it, FormatError for a file that cannot be read and for
    what llama.cpp does not survive.
    """
    def __init__(self, model: os.PathLike[str] | str | bytes, kept: collections.abc.Mapping[str, str], given: collections.abc.Mapping[str, tuple[typing.SupportsInt | typing.SupportsIndex, collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], numpy.ndarray[typing.Any, numpy.dtype[typing.Any]] | None]], changed: collections.abc.Mapping[str, bytes | None] = {}) -> None:
        ...
    def close(self) -> None:
        """
        What is mapped stays.
        """
    def kept(self) -> list[tuple[int, int]]:
        """
        Address and bytes of what is no placeholder, where this process has the file mapped.
        """
    def seal(self) -> bool:
        """
        Makes the placeholders NaN where this process has the file mapped, and gives back the pages of loading. False
        when it is mapped nowhere. Raises OutOfMemoryError.
        """
    @property
    def path(self) -> str:
        """
        For llama.cpp, while the file is open.
        """
class ServedModel:
    """
    The weights of a SeedΔ file, or of an ordinary model by columns. The files are mapped, and watched.

    Raises FormatError, SourceModelError, MissingFileError, ConfigError.
    """
    def __init__(self, path: os.PathLike[str] | str | bytes, ggml: LoadedGgml, options: Options) -> None:
        ...
    def stub_file(self) -> StubFile:
        """
        What llama.cpp is to load. Raises OutputError.
        """
    @property
    def changed(self) -> str:
        """
        Empty, or what is told when a file was changed since.
        """
    @property
    def dense(self) -> list[str]:
        """
        Names of those that are the fallback's from the start.
        """
    @property
    def file_bytes(self) -> int:
        ...
    @property
    def gates(self) -> list[list[str]]:
        """
        Names of the matrices that share each gate.
        """
    @property
    def payload(self) -> list[tuple[int, int]]:
        """
        Address and bytes of what weights are computed from, where it is mapped.
        """
    @property
    def registry(self) -> WeightRegistry:
        ...
    @property
    def served(self) -> list[str]:
        """
        Names of the tensors of a SeedΔ file that are computed from it.
        """
class OwnAttention:
    """
    Attention of ours in the graphs that a GraphHook sees.

    Raises RuntimeError saying which probe failed, or that attention is not computed as it should be.
    """
    def __init__(self, ggml: LoadedGgml, options: Options) -> None:
        ...
    def heads(self) -> list[dict[str, float]]:
        """
        For every KV head of the layers that choose: layer, head, exact and budget (its settings), density (share of
        the visible positions attended to), and of the operations that were compared with the exact result compared,
        recall (mean softmax mass kept) and gap (mean relative error of the output).
        """
    def invalidate(self) -> None:
        """
        Forgets the bits of all keys: something other than a graph wrote to the caches.
        """
    def take_over(self, hook: GraphHook) -> None:
        """
        In the graphs of a hook, from the next one on.
        """
    def wrong(self) -> tuple[bool, str] | None:
        """
        None, or why results do not count, and whether it is the settings' fault, after a graph was computed.
        """
    @property
    def automatic(self) -> bool:
        """
        Whether llama.cpp may compute what does not fit.
        """
    @property
    def chooses(self) -> bool:
        """
        Whether keys are left out.
        """
def base_values(base_kind: typing.SupportsInt | typing.SupportsIndex, seed: typing.SupportsInt | typing.SupportsIndex, row_begin: typing.SupportsInt | typing.SupportsIndex, row_end: typing.SupportsInt | typing.SupportsIndex, n_in: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.float32]:
    """
    Values of a base kind that is made of a seed, whole numbers in float32 [row_end - row_begin, n_in]; n_in up to 2^18.
    """
def check_loadable(model: os.PathLike[str] | str | bytes) -> None:
    """
    Raises FormatError for a GGUF model that ends the process when llama.cpp loads it or computes with it.
    """
def columns_lanes_encode(units: typing.Annotated[numpy.typing.ArrayLike, numpy.float32], *, code: LaneCode, scale_factor: typing.SupportsFloat | typing.SupportsIndex | None = None, feedback: typing.Annotated[numpy.typing.ArrayLike, numpy.float32] | None = None, threads: typing.SupportsInt | typing.SupportsIndex = 0) -> tuple[numpy.typing.NDArray[numpy.uint8], numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]]:
    """
    Encodes units float32 [n_in, n_out] in byte lanes of the column layout (docs/reference/format.md): W transposed,
    outputs already rotated, units in the order in which they are encoded.

    Args:
        code, scale_factor, threads: as for lanes_encode.
        feedback: float32 [n_in, n_in]; the error e of unit j changes each later unit l by -e · feedback[l, j]
            (GPTQ: H⁻¹_jl / H⁻¹_jj of the units that are left).
    Returns: (codes uint8 [n_in, streams, lines], input_scale float16 [n_in]), for base_scale 1 / code.deviation; the shape is
    that of all bytes, whose order is strip after strip.
    Raises: ValueError for NaN or infinite weights and options out of range.
    """
def coo_select(delta: typing.Annotated[numpy.typing.ArrayLike, numpy.float32], k: typing.SupportsInt | typing.SupportsIndex, importance: typing.Annotated[numpy.typing.ArrayLike, numpy.float32] | None = None, threads: typing.SupportsInt | typing.SupportsIndex = 0) -> tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.float32]]:
    """
    The k entries of each row of float32 [n_out, n_in] with the largest sqrt(importance)·|Δ|, by ascending column.

    Returns: (index uint32 [n_out, k], value float32 [n_out, k]).
    """
def ggml_required_symbols() -> list[str]:
    """
    Names of the ggml functions without which nothing runs.
    """
def ggml_symbols() -> list[str]:
    """
    Names of all ggml functions that are used.
    """
def is_matrix(name: str) -> bool:
    """
    Whether llama.cpp multiplies by a tensor of this name, or looks rows up in it, if its shape is a matrix's.
    """
def isa_active() -> str:
    """
    The instruction set in use.
    """
def isa_available() -> list[str]:
    """
    Instruction sets that this machine can run, slowest first.
    """
def isa_select(name: str) -> None:
    """
    Uses another instruction set from now on; ValueError if this machine cannot run it.
    """
def lane_blocks(code: LaneCode, n_in: typing.SupportsInt | typing.SupportsIndex, groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> tuple[numpy.typing.NDArray[numpy.int32], numpy.typing.NDArray[numpy.int32]]:
    """
    Columns in the order in which lanes_encode decides them, and where in it each block ends.

    Returns: (int32 [n_in], int32 [4 * len(groups)]).
    Raises: ValueError for groups that do not fit.
    """
def lane_codes() -> list[LaneCode]:
    """
    All codes of base kind lanes, by number.
    """
def lanes_encode(weights: typing.Annotated[numpy.typing.ArrayLike, numpy.float32], *, code: LaneCode, groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], rotation_block: typing.SupportsInt | typing.SupportsIndex = 0, seed: typing.SupportsInt | typing.SupportsIndex = 0, importance: typing.Annotated[numpy.typing.ArrayLike, numpy.float32] | None = None, scale_factor: typing.SupportsFloat | typing.SupportsIndex | None = None, feedback: typing.Annotated[numpy.typing.ArrayLike, numpy.float32] | None = None, lookahead: typing.SupportsInt | typing.SupportsIndex = 16, beam_width: typing.SupportsInt | typing.SupportsIndex = 1, threads: typing.SupportsInt | typing.SupportsIndex = 0) -> tuple[numpy.typing.NDArray[numpy.uint8], numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]]:
    """
    Encodes float32 [n_out, n_in] by Viterbi search over byte lanes (docs/reference/format.md).

    Args:
        code: one of lane_codes().
        groups: steps that are decided together, stream by stream; they add up to code.stream_steps(n_in), and the
            first has 32 at least (or all).
        importance: float32 [n_in] > 0, E[x²] a column; the weighted squared error is minimized.
        scale_factor: initial row scale over the row's root mean square; None is the measured best.
        feedback: float32 [n_in, n_in], rows and columns in the order of `lane_blocks`; rows of block b hold
            (H⁻¹_bb)⁻¹ H⁻¹_b,rest after b (GPTQ/LDLQ), and in b the triangle U with U Uᵀ = (H⁻¹_bb)⁻¹. The weights
            and the importance must be those of the rotated columns, in their own order, rotation_block 0.
        lookahead: steps searched beyond a group before its codes are fixed.
        beam_width: encodings of a row side by side: 1, 2, 4, 8, 16 or 32. Those that cost least go on from
            group to group (M-algorithm), or without feedback each has a scale of its own and the best one is
            taken. The time grows with it, the error falls.
        threads: 0 is all processors. The result does not depend on it.
    Returns: (codes uint8 [ceil(n_out / 16), lines, 64], row_scale float16 [n_out]), for base_scale 1 / code.deviation.
    Raises: ValueError for NaN or infinite weights and options out of range.
    """
def metrics(model: ServedModel | None, hook: GraphHook) -> dict[str, int | float]:
    """
    Of one context: `seeddelta.*`, `statecells.*`, `proc.*` and those of gates (None: an ordinary model), and those of
    attention that is ours.
    """
def prng_block_values(seed: typing.SupportsInt | typing.SupportsIndex, row_begin: typing.SupportsInt | typing.SupportsIndex, row_end: typing.SupportsInt | typing.SupportsIndex, n_in: typing.SupportsInt | typing.SupportsIndex, block: typing.SupportsInt | typing.SupportsIndex = 64) -> numpy.typing.NDArray[numpy.int8]:
    """
    Values of base kind prng_block, int8 [row_end - row_begin, n_in], odd, −63 to 63.
    """
def read_header(path: os.PathLike[str] | str | bytes) -> tuple[list[tuple[pathlib.Path, int]], int, int, dict[str, bytes], list[tuple[str, tuple[int, ...], int, int, int, int]]]:
    """
    The checked header of a GGUF file, or of all parts of a split one.

    Its files and their sizes, the alignment, where the first one's data begins, the bytes of every value (the type's
    word first), and name, shape (rows first), type, offset, bytes and number of the file of every tensor. Raises
    FormatError, MissingFileError.
    """
def rotate(rows: typing.Annotated[numpy.typing.ArrayLike, numpy.float32], block: typing.SupportsInt | typing.SupportsIndex, seed: typing.SupportsInt | typing.SupportsIndex, inverse: bool = False) -> numpy.typing.NDArray[numpy.float32]:
    """
    Seeded signs and block Hadamard transform of every row of float32 [n, n_in]; orthonormal. Returns a copy.
    """
def seed_search(weights: typing.Annotated[numpy.typing.ArrayLike, numpy.float32], *, seed: typing.SupportsInt | typing.SupportsIndex, block: typing.SupportsInt | typing.SupportsIndex, choices: typing.SupportsInt | typing.SupportsIndex, importance: typing.Annotated[numpy.typing.ArrayLike, numpy.float32] | None = None, step: typing.Annotated[numpy.typing.ArrayLike, numpy.float32] | None = None, prune: bool = True, threads: typing.SupportsInt | typing.SupportsIndex = 0) -> tuple[numpy.typing.NDArray[numpy.uint16], numpy.typing.NDArray[numpy.int8] | None, int]:
    """
    Chooses seeds of base kind prng_block for float32 [n_out, n_in], one a row or (with step) one a block.

    Choice c stands for the values v of seed + c·0x9E3779B97F4A7C15. The (weighted) squared error of the best
    multiple of v is minimized, with step that of gain·step·v for whole gains from −127 to 127.

    Args:
        block: columns a key: 8, 16, 32 or 64.
        choices: seeds tried, 1 to 65536; the first one wins a tie.
        importance: float32 [n_in] > 0.
        step: float32 [n_out], what a gain of 1 multiplies v by in a row.
        prune: leave out seeds that cannot win. The result does not depend on it, nor on threads.
    Returns: (seed_idx uint16 [n_out], None, scored), with step (seed_idx uint16 [n_out, blocks],
        seed_gain int8 [n_out, blocks], scored); `scored` counts the seeds whose error was computed.
    """
PRNG_BLOCK_STD: float = 36.945906403822335
__version__: str
