"""
The compiled half of plait. Import plait; what is meant for users is re-exported there.
"""

from __future__ import annotations

import collections.abc
import os
import types
import typing

import numpy
import numpy.typing
from plait.errors import (
    BackendError,
    BatchError,
    CacheFull,
    Error,
    ModelError,
    StateError,
    UnsupportedError,
)

__all__: list[str] = [
    "Adapter",
    "BackendError",
    "Batch",
    "BatchError",
    "CacheFull",
    "Capture",
    "Context",
    "Defrag",
    "Device",
    "Edit",
    "Error",
    "HeldSequence",
    "KVCache",
    "Model",
    "ModelError",
    "Output",
    "SamplerChain",
    "StateError",
    "Stats",
    "TensorInfo",
    "Trace",
    "UnsupportedError",
    "build_info",
    "dequantize",
    "devices",
    "load_control_vector",
    "quant_types",
    "quantize",
    "read_metadata",
    "token_logprobs",
]

class Device:
    """
    A place where a context can run, as listed by `devices()`.
    """
    def __repr__(self) -> str: ...
    @property
    def description(self) -> str:
        """
        One line for people.
        """
    @property
    def features(self) -> list[str]:
        """
        Names of what it offers; of the CPU its instruction sets, weakest first, of a Vulkan device features and extensions.
        """
    @property
    def limits(self) -> dict[str, int]:
        """
        What it takes at most, by name; none are known of the CPU.
        """
    @property
    def memory(self) -> int:
        """
        Bytes of its memory: of the CPU those that were free when it was listed, of others the largest heap of their own; 0 where the system does not say.
        """
    @property
    def name(self) -> str:
        """
        What Context(backend=...) and ctx.stats.nodes call it: "cpu", "vulkan:0".
        """

class Adapter:
    """
    A low-rank adapter (LoRA, arXiv:2106.09685) of a model; see `Model.load_lora`.

    It never changes and may be active in any number of contexts of its model.

    Source: cpp/runtime/steering/adapter.cpp
    """
    def __repr__(self) -> str: ...
    @property
    def alpha(self) -> float:
        """
        What the file scales by, before the rank; 0 where it says nothing, which means 1.
        """
    @property
    def invocation_tokens(self) -> list[int]:
        """
        Of an activated adapter (arXiv:2504.12397), the tokens from which on it is meant to be active; else none. Who feeds them sets the adapter before.
        """
    @property
    def metadata(self) -> types.MappingProxyType[str, typing.Any]:
        """
        The file's key-value pairs, read-only; as `Model.metadata`.
        """
    @property
    def name(self) -> str:
        """
        What the file calls it; empty where it says nothing.
        """
    @property
    def path(self) -> str:
        """
        The file it was opened from.
        """
    @property
    def weights(self) -> list[str]:
        """
        Names of the model's tensors that it changes.
        """

class TensorInfo:
    """
    What a tensor of a model file is.
    """
    def __repr__(self) -> str: ...
    @property
    def dtype(self) -> str:
        """
        Element type as GGUF tools write it: "F32", "Q4_K".
        """
    @property
    def name(self) -> str:
        """
        Its name in the file.
        """
    @property
    def nbytes(self) -> int:
        """
        Bytes in the file.
        """
    @property
    def shape(self) -> tuple[int, ...]:
        """
        Outermost axis first, as in NumPy: a matrix product's weight is (n_out, n_in).
        """

class Model:
    """
    A model file, opened: its metadata and its weights.

    A model never changes and may be shared by any number of contexts and threads. The weights are read
    when a context first needs them, each once for all contexts that store them alike.

    Parameters
    ----------
    path : str or path-like
        A GGUF file; of a split model (name-00001-of-00003.gguf) the first.
    mmap : bool
        Share the pages of the file with other processes instead of copying from it. Someone who
        truncates a mapped file ends every process that uses it (SIGBUS); without mapping, that and
        every other change of the file is an error, or goes unnoticed.

    Raises
    ------
    ModelError
        The file cannot be read or is not what it claims to be; the message names the defect.
    UnsupportedError
        An architecture or element type that plait does not have.

    Source: cpp/runtime/loaded_model.cpp
    """
    def __init__(self, path: str | os.PathLike[str], mmap: bool = False) -> None: ...
    def __repr__(self) -> str: ...
    def load_lora(
        self, path: str | os.PathLike[str], rank_stabilized: bool | None = None
    ) -> Adapter:
        """
        Open a low-rank adapter of this model, for `Context.set_lora`.

        Parameters
        ----------
        path : str or path-like
            A GGUF file as llama.cpp's convert_lora_to_gguf.py writes it.
        rank_stabilized : bool, optional
            Scale by alpha over the root of the rank (arXiv:2312.03732), not over the rank. None: as the
            file says in adapter.lora.rank_stabilized; the converter does not.

        Raises
        ------
        ModelError
            It is no adapter, or one of another model; the message names the tensor.
        UnsupportedError
            It changes what is no matrix.

        Source: cpp/runtime/steering/adapter.cpp
        """
    def tensor(self, name: str) -> numpy.ndarray:
        """
        A copy of a tensor, dequantised.

        Parameters
        ----------
        name : str
            A key of `tensors`.

        Returns
        -------
        ndarray of float32, of the tensor's shape
            int32 where the file holds I32.

        Raises
        ------
        KeyError
            There is no such tensor.
        ModelError
            The file has changed since it was opened.
        """
    @property
    def arch(self) -> str:
        """
        Name of the architecture: "llama".
        """
    @property
    def metadata(self) -> types.MappingProxyType[str, typing.Any]:
        """
        The file's key-value pairs, in its order; read-only.

        Values are int, float, bool, str, ndarray or list of str. Bytes of a string that are not UTF-8 are
        kept as surrogates (PEP 383).
        """
    @property
    def n_ctx_train(self) -> int:
        """
        Tokens of the longest text in training; 0 where the file says nothing.
        """
    @property
    def n_embd(self) -> int:
        """
        Width of an embedding, input and output.
        """
    @property
    def n_layer(self) -> int:
        """
        Number of layers.
        """
    @property
    def n_params(self) -> int:
        """
        Number of weights.
        """
    @property
    def n_pos_per_token(self) -> int:
        """
        Positions of a token: 1, or 4 for M-RoPE.
        """
    @property
    def n_vocab(self) -> int:
        """
        Number of token ids, the width of a row of logits.
        """
    @property
    def nbytes(self) -> int:
        """
        Bytes of all tensors in the file.
        """
    @property
    def path(self) -> str:
        """
        The file it was opened from.
        """
    @property
    def tensors(self) -> types.MappingProxyType[str, TensorInfo]:
        """
        The file's tensors by name, in its order; read-only.
        """

class Batch:
    """
    Tokens (or embeddings) to process: of which sequences, at which positions.

    What add(), add_sequence() and add_embeddings() are given is copied; the arrays of from_arrays() are
    read when decode() is called. A batch can be decoded again, and cannot be changed while it is.

    Wherever a sequence id is expected, a `Sequence` will do.
    """
    @staticmethod
    def from_arrays(
        tokens: numpy.typing.ArrayLike,
        positions: numpy.typing.ArrayLike | None,
        seq_ids: numpy.typing.ArrayLike | None,
        logits: numpy.typing.ArrayLike,
    ) -> Batch:
        """
        A batch over arrays.

        Arrays of exactly these types, C-contiguous, are not copied: decode() reads what they hold then. Tensors
        of other libraries that lend their memory by DLPack (torch, jax) are arrays too.
        Others are converted now. Adding to such a batch copies its arrays first.

        Parameters
        ----------
        tokens : array_like of int32, shape (n,)
        positions : array_like of int32, shape (n,) or (n, n_pos_per_token), or None
            At least 0. None: every entry goes on where its sequence ends.
        seq_ids : array_like of int32, shape (n,) or (n, k), or None
            Several ids of one token, filled up with -1. None: all sequence 0.
        logits : array_like of bool, shape (n,)
            Whether an output row is asked for.

        Raises
        ------
        BatchError
            A shape that does not fit, or a value beyond int32.
        TypeError
            Elements that are no integers, or in `logits` no bools.
        """
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def __repr__(self) -> str: ...
    def add(
        self,
        token: typing.SupportsIndex,
        pos: typing.SupportsIndex | numpy.typing.ArrayLike | None = None,
        seq: typing.SupportsIndex | collections.abc.Iterable[typing.SupportsIndex] = 0,
        logits: bool = False,
    ) -> None:
        """
        Add one token.

        Parameters
        ----------
        token : int
        pos : int, four ints, or None
            Index of the token in its sequence, from 0. None: decode() takes the one after the largest
            position of the sequence. For M-RoPE models (t, y, x, 0); one int p stands for (p, p, p, 0).
        seq : int, Sequence, or several
            The sequences it belongs to. Several share the token: it is computed once for all of them.
        logits : bool
            Whether an output row is asked for.

        Raises
        ------
        BatchError
            The batch holds embeddings; a negative position; a value beyond int32.
        TypeError
            An argument of another type.
        """
    def add_embeddings(
        self,
        array: numpy.typing.ArrayLike,
        seq: typing.SupportsIndex | collections.abc.Iterable[typing.SupportsIndex] = 0,
        pos: typing.SupportsIndex | numpy.typing.ArrayLike | None = None,
        logits: str | numpy.typing.ArrayLike = "last",
    ) -> None:
        """
        Add consecutive entries given by their embeddings instead of token ids.

        Parameters
        ----------
        array : array_like of float32, shape (n, n_embd)
        seq, pos, logits
            As in add_sequence().

        Raises
        ------
        BatchError
            The batch holds tokens, or embeddings of another width; a shape that does not fit.
        TypeError
            Elements that are no floats.
        """
    def add_sequence(
        self,
        tokens: numpy.typing.ArrayLike,
        seq: typing.SupportsIndex | collections.abc.Iterable[typing.SupportsIndex] = 0,
        pos: typing.SupportsIndex | numpy.typing.ArrayLike | None = None,
        logits: str | numpy.typing.ArrayLike = "last",
    ) -> None:
        """
        Add consecutive tokens of a sequence.

        Parameters
        ----------
        tokens : array_like of int, shape (n,)
            None of them adds nothing.
        seq : int, Sequence, or several
        pos : int, array_like of int of shape (n,) or (n, n_pos_per_token), or None
            An int is the position of the first token. None: they go on where the sequence ends.
        logits : "last", "all", "none", or array_like of bool of shape (n,)
            Which of them an output row is asked for.

        Raises
        ------
        BatchError
            The batch holds embeddings; a shape that does not fit; a negative position; a value beyond int32.
        TypeError
            Elements that are no integers.
        ValueError
            `logits` is another word.
        """
    def clear(self) -> None:
        """
        Remove all entries. BatchError while the batch is being decoded.
        """

class Output:
    """
    What decode() and encode() return.

    The arrays are views of memory that belongs to this output alone: nothing is copied, and they stay
    valid and unchanged for as long as they exist, whatever the context does next. They are writable
    (some consumers of DLPack insist); nobody but their holder ever writes to them or reads them. torch.from_dlpack(output) and its like in
    other libraries take the logits (the embeddings where there are none), without a copy too.

    In a notebook an output shows the likeliest tokens of its rows. len() is the number of rows. Iterating gives the rows of logits.
    """
    def __dlpack__(
        self,
        *,
        stream: typing.Any = None,
        max_version: typing.Any = None,
        dl_device: typing.Any = None,
        copy: typing.Any = None,
    ) -> typing.Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __getitem__(self, index: typing.SupportsIndex) -> numpy.typing.NDArray[numpy.float32]:
        """
        The row of logits of a batch entry, float32 (n_vocab,).

        Negative indices count from the end of the batch. IndexError where the entry does not exist or asked
        for no output.
        """
    def __iter__(self) -> collections.abc.Iterator[numpy.typing.NDArray[numpy.float32]]: ...
    def __len__(self) -> int: ...
    def __repr__(self) -> str: ...
    def _repr_html_(self) -> str: ...
    @property
    def embeddings(self) -> numpy.typing.NDArray[numpy.float32] | typing.Any:
        """
        float32 (n_outputs, n_embd), or None where there are none.

        Pooled ones are (n_seqs, n_embd), in ascending sequence id. Not normalised. Scores ("rank") are
        (n_seqs, n_scores).
        """
    @property
    def indices(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        int32 (n_outputs,): which batch entry each row answers. Pooled: the sequence's last entry.
        """
    @property
    def logits(self) -> numpy.typing.NDArray[numpy.float32] | typing.Any:
        """
        float32 (n_outputs, n_vocab), or None where there are none.

        Unnormalised natural logarithms of the next token's probabilities; one row for each entry that asked
        for one, in the order of the batch.
        """
    @property
    def model(self) -> typing.Any:
        """
        The Model that computed it, or None where nobody holds it any more.
        """

class Context:
    """
    A conversation with a model: what it remembers, and the plans that compute it.

    Everything about it is fixed at creation. Contexts are independent of each other and may share a
    model; one context called from several threads lets them wait for each other. A closed context
    raises ValueError.

    Parameters
    ----------
    model : Model
    n_ctx : int, optional
        Cells that one sequence can hold, never rounded. None: the training length, or less where the
        cache would take over half of the memory that is free.
    n_seq_max : int
        Sequences that may live at once; their ids are 0 to n_seq_max - 1.
    kv : "auto", "unified" or "streams"
        How sequences share rows: one table for all ("unified", what "auto" means), or n_ctx rows for
        each ("streams").
    kv_cells : int, optional
        Rows of the unified table. None: n_ctx * n_seq_max.
    type_k, type_v : str
        Element types of cached keys and values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl.
    n_batch : int
        Most entries of one call.
    n_ubatch : int
        Most tokens computed at once; longer batches are cut.
    backend : str
        "cpu", "vulkan", "vulkan:1", several as in "vulkan:0,vulkan:1", or "auto": the first GPU, if
        there is one. What a device has no kernel for runs on the CPU.
    n_gpu_layers : int, optional
        So many of the layers run on the devices, with their caches, and the others on the CPU: the last
        ones, where the output counts as one more. -1: all. None: those that the devices have memory for.
    split : sequence of float, optional
        How many of these layers each device has, in proportion. None: by the memory that is free.
    threads : int, optional
        None: the physical cores that this process may use.
    isa : str, optional
        "scalar", "avx2", "avx512" or "amx": at most this instruction set. The environment variable
        PLAIT_ISA does the same for the whole process.
    flash_attention : bool or "auto"
        Attention in one pass over the keys, or with all its scores written out.
    embeddings : bool
        Return embeddings too.
    pooling : str
        "auto" (as the model says), "none", "mean", "cls", "last" or "rank": one embedding for each
        sequence of a call, instead of logits, when `embeddings` are asked for. With "rank" it is the
        scores that the model's head gives the sequence: a classifier's labels, a reranker's one.
    causal : bool, optional
        Whether a token sees only those before it. None: as the model says.
    graph_reuse : bool
        Keep plans for later steps of the same shape. Off is for comparison.
    fuse : bool
        Run what costs less together as one operation, with the same bits. Off is for comparison.
    invariant : bool
        A sequence's logits are the same bits whatever else is in the batch. False permits faster
        arithmetic where there is some.
    swa_full : bool
        Keep every cell of layers with a sliding window.
    defrag_threshold : float, optional
        `kv.fragmentation` above which decode() moves cells together before it goes on. It looks now and
        then, as tokens come. None: never.

    Raises
    ------
    ValueError
        An argument that does not fit; the message names it, its value and what was expected.
    BackendError
        A device or instruction set that this machine lacks.
    UnsupportedError
        A combination that this model cannot do.
    MemoryError

    Source: cpp/runtime/context.cpp
    """
    def __init__(
        self,
        model: Model,
        *,
        n_ctx: typing.SupportsIndex | None = None,
        n_seq_max: typing.SupportsIndex = 1,
        kv: str = "auto",
        kv_cells: typing.SupportsIndex | None = None,
        type_k: str = "f16",
        type_v: str = "f16",
        n_batch: typing.SupportsIndex = 2048,
        n_ubatch: typing.SupportsIndex = 512,
        backend: str = "cpu",
        n_gpu_layers: typing.SupportsIndex | None = None,
        split: collections.abc.Iterable[typing.SupportsFloat] | None = None,
        threads: typing.SupportsIndex | None = None,
        isa: str | None = None,
        flash_attention: bool | str = "auto",
        embeddings: bool = False,
        pooling: str = "auto",
        causal: bool | None = None,
        graph_reuse: bool = True,
        fuse: bool = True,
        invariant: bool = True,
        swa_full: bool = False,
        defrag_threshold: typing.SupportsFloat | typing.SupportsIndex | None = 0.5,
    ) -> None: ...
    def __repr__(self) -> str: ...
    def close(self) -> None:
        """
        Free the cache and the plans. Outputs and statistics stay. Harmless when closed already.
        """
    def decode(self, batch: Batch) -> Output:
        """
        Run a batch and remember its keys and values.

        All or nothing: on any exception the cache is as it was before the call. The GIL is released.
        Signal handlers run about every 20 ms, so Ctrl-C ends the call.

        Parameters
        ----------
        batch : Batch
            Entries of a sequence must go on where the cache ends.

        Returns
        -------
        Output
            A row for each entry that asked for one, in the order of the batch.

        Raises
        ------
        BatchError
            The batch is empty, longer than n_batch, or has an entry that cannot be: the message names it,
            the value and what was expected.
        CacheFull
            There are not enough free cells; `needed` and `free` say how many.
        ValueError
            The context is closed.
        BackendError
            A device failed.

        Source: cpp/runtime/step/step_runner.cpp
        """
    def encode(self, batch: Batch) -> Output:
        """
        Run a batch without a past and without remembering anything.

        The same computation as decode() on an empty cache. Every sequence of the batch starts anew, at any
        position. Arguments, result and errors are those of decode().
        """
    def graph_nodes(
        self,
        n_tokens: typing.SupportsIndex,
        n_seqs: typing.SupportsIndex,
        n_outputs: typing.SupportsIndex,
        embeddings: bool = False,
        encode: bool = False,
    ) -> list[dict[str, typing.Any]]:
        """
        The nodes of the plan of such a step, each as a dict; see `graph`.

        Raises ValueError for a step that this context cannot be asked for.
        """
    def open_sequence(self) -> HeldSequence:
        """
        Reserve a sequence id that holds nothing; what `sequence()` stands on.

        Raises CacheFull when none is left.
        """
    def set_control_vector(
        self,
        vector: numpy.typing.ArrayLike | None,
        first_layer: typing.SupportsIndex = 1,
        last_layer: typing.SupportsIndex | None = None,
    ) -> None:
        """
        Add a vector to the output of every layer in every later call (arXiv:2310.01405).

        What is cached stays as it was computed. Another vector of these layers builds no plan.

        Parameters
        ----------
        vector : array-like of float32, (n_layer, n_embd), or None
            Row i is added to what layer i gives, blk.i.l_out; rows may be missing at the end. None removes
            the vector. Of a model with an encoder it is the decoder's layers.
        first_layer, last_layer : int
            The first and the last layer that it is added to. None: the model's last. Layer 0 is left out
            unless asked for, as in llama.cpp.

        Raises
        ------
        ValueError
            An array of another shape, or with numbers that are not finite; layers that the model lacks.

        Source: cpp/graph/steer.cpp
        """
    def set_lora(self, adapters: collections.abc.Mapping[Adapter, float] | None) -> None:
        """
        Add adapters to the model in every later call: y = W x + sum of scale * B A x.

        In place of those before; {} or None removes them. Changing scales alone builds no plan, nor does
        going back to a set that was active before. What is cached stays as it was computed.

        Parameters
        ----------
        adapters : dict of Adapter to float, or None
            From `Model.load_lora` of this context's model, with a scale each. Several are summed in the
            order in which they were loaded.

        Raises
        ------
        ValueError
            An adapter of another model; a scale that is not finite.
        UnsupportedError
            An adapter of a weight that this model does not multiply by.

        Source: cpp/graph/low_rank.cpp
        """
    def value_names(self) -> list[str]:
        """
        Names of the values between input and output that `capture` can record.
        """
    def value_shape(self, name: str) -> tuple[int, ...]:
        """
        Shape of one token's row of a value: (n_embd,), or (n_head, head_dim).
        """
    @property
    def causal(self) -> bool:
        """
        Whether a token sees only those before it.
        """
    @property
    def closed(self) -> bool:
        """
        Whether close() was called.
        """
    @property
    def compute_bytes(self) -> int:
        """
        Bytes for the inputs and the intermediate values of a step. Creation takes what the largest step of decode() needs.
        """
    @property
    def devices(self) -> list[str]:
        """
        Names of the devices that compute something, as in `devices()`; the CPU comes last. A device named twice is "vulkan:0" and "vulkan:0/2".
        """
    @property
    def flash_attention(self) -> bool:
        """
        Whether attention is computed in one pass over the keys.
        """
    @property
    def fuse(self) -> bool:
        """
        Whether operations that cost less together run as one.
        """
    @property
    def graph_reuse(self) -> bool:
        """
        Whether plans are kept for later steps.
        """
    @property
    def invariant(self) -> bool:
        """
        Whether logits are the same bits whatever else is in the batch.
        """
    @property
    def model(self) -> Model:
        """
        The Model.
        """
    @property
    def n_batch(self) -> int:
        """
        Most entries of one call.
        """
    @property
    def n_ctx(self) -> int:
        """
        Cells that one sequence can hold.
        """
    @property
    def n_seq_max(self) -> int:
        """
        Sequences that may live at once.
        """
    @property
    def n_ubatch(self) -> int:
        """
        Most tokens computed at once.
        """
    @property
    def pooling(self) -> str:
        """
        How token embeddings become one: "none", "mean", "cls", "last" or "rank".
        """
    @property
    def type_k(self) -> str:
        """
        Element type of cached keys.
        """
    @property
    def type_v(self) -> str:
        """
        Element type of cached values.
        """

class Capture:
    """
    What records values between input and output; see plait.capture.
    """
    def __enter__(self) -> Capture: ...
    def __exit__(self, kind: typing.Any, error: typing.Any, trace: typing.Any) -> None: ...
    def __init__(self, context: Context, names: list[str]) -> None: ...
    @property
    def calls(self) -> list[dict[str, numpy.typing.NDArray[numpy.float32] | typing.Any]]:
        """
        For each call, its values by name, float32 (n_rows, ...); those that it did not compute are left out.
        """
    @property
    def names(self) -> list[str]:
        """
        Names of the values that it records, in the order in which they are computed.
        """

class Edit:
    """
    What changes a value to what its attribute _what says; see plait.edit.
    """
    def __enter__(self) -> Edit: ...
    def __exit__(self, kind: typing.Any, error: typing.Any, trace: typing.Any) -> None: ...
    def __init__(self, context: Context, name: str, adds: bool) -> None: ...
    @property
    def name(self) -> str:
        """
        The value's name.
        """

class Trace:
    """
    What notes which thread runs what when; see plait.graph.
    """
    def __enter__(self) -> Trace: ...
    def __exit__(self, kind: typing.Any, error: typing.Any, trace: typing.Any) -> None: ...
    def __init__(self, context: Context) -> None: ...
    def taken(self) -> list[tuple[str, str, int, int, int]] | None:
        """
        (operation, name, thread, begin, end) of what ran in the `with` that ended last, in nanoseconds of one clock; None where it was asked before.
        """

class HeldSequence:
    """
    A sequence id that nobody else is given until it is closed, or gone.
    """
    def close(self) -> None:
        """
        Free its cells and give the id back. Harmless when closed already.
        """
    @property
    def id(self) -> int:
        """
        The id, also when closed.
        """

class KVCache:
    """
    What a context remembers: rows of keys and values, and which sequences hold them.

    Sequence ids are ints or `Sequence` handles. Ranges of positions are half open, [p0, p1); p1 None
    means to the end. An operation that raises or returns False has changed nothing. After close() of
    the context every method raises ValueError.

    Errors that every method shares: ValueError for a sequence id outside 0 to n_seq_max - 1, for
    positions that are negative or p0 > p1, and for a closed context; TypeError for what is no integer.
    """
    def __init__(self, context: Context) -> None: ...
    def __repr__(self) -> str: ...
    def cells(self) -> numpy.ndarray:
        """
        The cells in use, for people.

        Returns
        -------
        structured ndarray, shape (n_used,)
            Fields: `row` (int32, storage row), `stream` (int32), `pos` (int32, (n_pos_per_token,)),
            `shift` (int32, rotation that is still to be applied), `seqs` (bool, (n_seq_max,), who holds it).
        """
    def clear(self) -> None:
        """
        Empty every sequence.
        """
    def copy_to(self, other: Context) -> None:
        """
        Put a copy of all that is remembered in place of all that another context remembers.

        Both must be of one model and have the same cache types. Errors are those of from_bytes().
        """
    def defrag(self, max_moves: typing.SupportsIndex | None = None) -> int:
        """
        Move cells together: afterwards the first cells of every stream are in use, in long runs.

        Only attention gets faster. What cells hold stays the same to the bit, pending shifts included, and
        no batch needs it to fit.

        Parameters
        ----------
        max_moves : int, optional
            Moves in one round, at least 1; there are as many rounds as it takes. None: 1024.

        Returns
        -------
        int
            Cells that were moved; 0 when there was nothing to do. `last_defrag` says more.

        Raises
        ------
        ValueError
            `max_moves` below 1.
        """
    def from_bytes(
        self,
        data: bytes | bytearray | memoryview | numpy.typing.NDArray[numpy.uint8],
        seq: typing.SupportsIndex | None = None,
    ) -> None:
        """
        Take up what to_bytes() gave, of this context or another one of the same model.

        A state of all sequences takes the place of everything, one of a single sequence that of one.
        n_ctx, n_seq_max, kv= ("unified" or "streams"), flash_attention and the device may differ, as far
        as there is room.

        Parameters
        ----------
        data : bytes or a contiguous buffer
        seq : int, optional
            The sequence to load into, for a state of a single one. None: the id that it was saved from.

        Raises
        ------
        StateError
            The bytes are damaged or no state, or another model, cache type or window made them: the
            message names what differs. Nothing has changed.
        CacheFull
            There is no room. Nothing has changed.
        """
    def keys(
        self, layer: typing.SupportsIndex, seq: typing.SupportsIndex
    ) -> numpy.typing.NDArray[numpy.float32]:
        """
        A copy of a sequence's cached keys.

        Returns
        -------
        ndarray of float32, shape (n_pos, n_head_kv, head_dim)
            In order of position, pending shifts applied, as rotated for their positions.

        Raises
        ------
        IndexError
            There is no such layer.
        UnsupportedError
            The layer keeps no keys.
        """
    def load(self, path: str | os.PathLike[str], seq: typing.SupportsIndex | None = None) -> None:
        """
        Take up a file that save() wrote; arguments and errors are those of from_bytes().
        """
    def save(self, path: str | os.PathLike[str], seq: typing.SupportsIndex | None = None) -> None:
        """
        Write to_bytes(seq) to a file.

        A file that is there is replaced as a whole at the end: a process that dies leaves the old one, and
        beside it "{path}.plait-tmp", which the next save to the same path takes away. StateError where the
        file cannot be written.
        """
    def seq_add(
        self,
        seq: typing.SupportsIndex,
        p0: typing.SupportsIndex,
        p1: typing.SupportsIndex | None,
        delta: typing.SupportsIndex,
    ) -> None:
        """
        Add `delta` to positions [p0, p1); cached keys are rotated accordingly before they are next read.

        Cells shared with another sequence are copied first. Where the rotary function also multiplies
        (YaRN), each shift multiplies every key that the sequence alone holds once more: after many
        shifts it is better to compute the sequence again.

        Raises
        ------
        ValueError
            A position would become negative, or the order of positions change.
        CacheFull
            There are no cells for the copies.
        UnsupportedError
            The keys of this model cannot be rotated.
        """
    def seq_cp(
        self,
        src: typing.SupportsIndex,
        dst: typing.SupportsIndex,
        p0: typing.SupportsIndex = 0,
        p1: typing.SupportsIndex | None = None,
    ) -> None:
        """
        Make `dst` hold what `src` holds at positions [p0, p1).

        What `dst` held there is released first; the rest of it stays. Cells are shared where the memory
        can, copied otherwise. `src` equal to `dst` does nothing.

        Raises
        ------
        UnsupportedError
            This memory cannot copy that part.
        CacheFull
            A copy that needs cells found none.
        """
    def seq_div(
        self,
        seq: typing.SupportsIndex,
        p0: typing.SupportsIndex,
        p1: typing.SupportsIndex | None,
        divisor: typing.SupportsIndex,
    ) -> None:
        """
        Divide positions [p0, p1) by `divisor`, at least 1, rounding down. Several may become equal.

        Errors are those of seq_add().
        """
    def seq_keep(self, seq: typing.SupportsIndex) -> None:
        """
        Empty every other sequence.
        """
    def seq_len(self, seq: typing.SupportsIndex) -> int:
        """
        Number of cells that a sequence holds, shared ones included.
        """
    def seq_pos_max(self, seq: typing.SupportsIndex) -> int:
        """
        The largest position that a sequence holds, of all axes; -1 when it is empty.
        """
    def seq_pos_min(self, seq: typing.SupportsIndex) -> int:
        """
        The smallest position that a sequence holds; -1 when it is empty.
        """
    def seq_rewind(self, seq: typing.SupportsIndex, pos: typing.SupportsIndex) -> int:
        """
        Go back to before position `pos`, or as far before it as this memory can.

        Windows and recurrent states forget what a sequence no longer needs, so it may go back only to what
        a fork of it (seq_cp) still has, or to its beginning.

        Returns
        -------
        int
            The position where the sequence goes on: tokens from there on have to be fed again.
        """
    def seq_rm(
        self,
        seq: typing.SupportsIndex,
        p0: typing.SupportsIndex = 0,
        p1: typing.SupportsIndex | None = None,
    ) -> bool:
        """
        Forget positions [p0, p1) of a sequence. Cells that others hold too stay theirs.

        Returns
        -------
        bool
            False where this memory cannot remove that part. An empty range is True.
        """
    def to_bytes(self, seq: typing.SupportsIndex | None = None) -> bytes:
        """
        What is remembered, as bytes.

        They name the model and the cache types, and carry checksums. Equal contents give equal bytes,
        whatever rows hold them and whatever happened before. Pending shifts are applied first.

        Parameters
        ----------
        seq : int, optional
            One sequence; None: all.

        Source: cpp/runtime/state/state_format.h
        """
    def values(
        self, layer: typing.SupportsIndex, seq: typing.SupportsIndex
    ) -> numpy.typing.NDArray[numpy.float32]:
        """
        A copy of a sequence's cached values, float32 (n_pos, n_head_kv, head_dim); order and errors as in keys().
        """
    @property
    def can_partial_remove(self) -> bool:
        """
        Whether a part of a sequence can be removed.
        """
    @property
    def can_shift(self) -> bool:
        """
        Whether positions can be changed (seq_add, seq_div).
        """
    @property
    def fragmentation(self) -> float:
        """
        How much attention suffers from where cells lie, from 0 to 1.

        The share of its steps that it takes only because runs of cells are short: 0 where they have 32 cells
        or more, or where they cannot be longer, towards 1 where each cell is by itself. 0 also where
        sequences hold less than 256 cells.
        """
    @property
    def kind(self) -> str:
        """
        Of the whole memory: "unified", "streams", "sliding", "recurrent", "hybrid", "cross" or "none".
        """
    @property
    def last_defrag(self) -> Defrag | None:
        """
        What the last defragmentation did, asked for or automatic; None when there was none.
        """
    @property
    def n_cells(self) -> int:
        """
        Cells in all.
        """
    @property
    def n_free(self) -> int:
        """
        Cells that no sequence holds.
        """
    @property
    def n_seq_max(self) -> int:
        """
        Sequences that may live at once.
        """
    @property
    def n_streams(self) -> int:
        """
        1, or n_seq_max where each sequence has rows of its own.
        """
    @property
    def n_used(self) -> int:
        """
        Cells that at least one sequence holds.
        """
    @property
    def nbytes(self) -> int:
        """
        Bytes of all keys and values, used or not.
        """

class Defrag:
    """
    What a defragmentation did; from `KVCache.last_defrag`.
    """
    def __repr__(self) -> str: ...
    @property
    def automatic(self) -> bool:
        """
        Whether nobody had asked.
        """
    @property
    def bytes(self) -> int:
        """
        Bytes copied, on the device.
        """
    @property
    def cells(self) -> int:
        """
        Cells that were moved.
        """
    @property
    def moves(self) -> int:
        """
        Moves; cells that went side by side are one. Layers of other windows count for themselves where their cells are their own.
        """
    @property
    def records(self) -> numpy.ndarray:
        """
        The moves, in order.

        Returns
        -------
        structured ndarray
            Fields `group` (layers with the same cells), `from`, `to`, `n`: cells [from, from + n) went to
            [to, to + n). All int32.
        """
    @property
    def rounds(self) -> int:
        """
        Rounds of at most `max_moves` of them.
        """
    @property
    def seconds(self) -> float:
        """
        Wall time in seconds.
        """

class Stats:
    """
    What a context has done since it was made or reset. Read when asked, not a copy.

    After close() the last figures stay.
    """
    def __init__(self, context: Context) -> None: ...
    def __repr__(self) -> str: ...
    def reset(self) -> None:
        """
        Set every figure to zero.
        """
    @property
    def commands_recorded(self) -> int:
        """
        Command buffers recorded: a plan records one when it first runs.

        0 on the CPU, which has none.
        """
    @property
    def commands_submitted(self) -> int:
        """
        How often one was submitted: once for every run of a plan.
        """
    @property
    def microbatches(self) -> int:
        """
        Pieces that they were computed in.
        """
    @property
    def nodes(self) -> dict[str, int]:
        """
        Graph nodes run, by device as in `devices()`.
        """
    @property
    def plan_misses(self) -> dict[str, int]:
        """
        Why plans were built: reason to count, without those that did not occur.

        Reasons: "first use", "new bucket", "new adapter set", "new capture set", "new edit set",
        "reuse off", "evicted".
        """
    @property
    def plans_built(self) -> int:
        """
        Plans made.
        """
    @property
    def plans_reused(self) -> int:
        """
        How often a plan was found made.
        """
    @property
    def rows_copied(self) -> int:
        """
        Cache rows copied for copies, shifts and defragmentation.
        """
    @property
    def seconds(self) -> dict[str, float]:
        """
        Wall time in seconds, by phase: "place", "build", "input", "compute", "output".
        """
    @property
    def tokens(self) -> int:
        """
        Entries of successful calls.
        """

class SamplerChain:
    """
    What plait.Sampler calls: methods in order, and what each sequence drew.

    `stages`: tuples of a method's name and its numbers. Sequences are named by any number (`keys`).
    Rows are float32 (n, n_vocab), masks uint32 (n, (n_vocab + 31) // 32) with a bit for each token that
    may be drawn. Calls run without the GIL.

    Source: cpp/sampling/sampler.h
    """
    def __init__(
        self,
        stages: collections.abc.Iterable[tuple[typing.Any, ...]],
        forced: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        seed: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def accept(
        self,
        key: typing.SupportsInt | typing.SupportsIndex,
        tokens: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    ) -> None:
        """
        Tokens of the sequence that somebody else chose.
        """
    def apply(
        self,
        logits: numpy.typing.NDArray[numpy.float32],
        keys: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        masks: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32] | None,
        first: typing.SupportsInt | typing.SupportsIndex,
        last: typing.SupportsInt | typing.SupportsIndex,
    ) -> numpy.typing.NDArray[numpy.float32]:
        """
        The rows after stages [first, last), float32 (n, n_vocab): -inf where a token has gone.
        """
    def probabilities(
        self,
        logits: numpy.typing.NDArray[numpy.float32],
        keys: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        masks: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32] | None = None,
        first: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> numpy.typing.NDArray[numpy.float64]:
        """
        What sample() would draw from: float64 (n, n_vocab).
        """
    def reset(self, key: typing.SupportsInt | typing.SupportsIndex | None = None) -> None:
        """
        Forget a sequence; None: all of them.
        """
    def sample(
        self,
        logits: numpy.typing.NDArray[numpy.float32],
        keys: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        masks: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32] | None = None,
        first: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> numpy.typing.NDArray[numpy.int32]:
        """
        A token for each row, noted as the next of its sequence: int32 (n,). Stages before `first` are left out. ValueError, and nothing noted, for rows that hold NaN or +inf or leave no token.
        """
    def start(
        self,
        key: typing.SupportsInt | typing.SupportsIndex,
        tokens: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    ) -> None:
        """
        The sequence holds these tokens, and nothing was drawn of it yet; its random numbers go on.
        """
    def tokens(
        self, key: typing.SupportsInt | typing.SupportsIndex
    ) -> numpy.typing.NDArray[numpy.int32]:
        """
        A copy of what it knows the sequence to hold: int32 (n,).
        """

def build_info() -> dict[str, typing.Any]:
    """
    What this build of plait is made of.

    Returns
    -------
    dict
        "version" (str), "compiler" (str), "isas" (list of str: instruction sets that this machine runs,
        weakest first), "isas_built" (list of str: those compiled in), "vulkan" (bool),
        "cooperative_matrices" (list of str: "KHR", "NV", the extensions of Vulkan that products can use),
        "architectures" (list of str: general.architecture of the files that Model opens),
        "commit" (str, or None where the build was not told).
    """

def dequantize(raw: numpy.typing.ArrayLike, type: str) -> numpy.typing.NDArray[numpy.float32]:
    """
    Float values of rows stored in one of GGUF's formats; the reverse of quantize().

    Parameters
    ----------
    raw : array_like of uint8, shape (rows, bytes)
        Whole blocks. Any number of leading axes.
    type : str
        One of `types()`, in any case.

    Returns
    -------
    ndarray of float32, shape (rows, n)
        Bit for bit what ggml makes of the same bytes.

    Raises
    ------
    ValueError
        Unknown type, or rows that are not whole blocks.
    TypeError
        Elements that are not uint8.
    """

def devices() -> list[Device]:
    """
    The devices of this machine that this build can run a context on, the CPU first.
    """

def load_control_vector(path: str | os.PathLike[str]) -> numpy.typing.NDArray[numpy.float32]:
    """
    The directions of a GGUF file, for `Context.set_control_vector`: float32 (n, n_embd).

    Row i is for layer i: the file's direction.i, or zeros where it has none. Raises ModelError for a file
    that is no control vector.
    """

def quant_types() -> list[str]:
    """
    Names of the element types that `dequantize` reads, as GGUF tools write them; `quantize` says which of them it writes.
    """

def quantize(values: numpy.typing.ArrayLike, type: str) -> numpy.typing.NDArray[numpy.uint8]:
    """
    Rows of float values stored in one of GGUF's formats.

    Parameters
    ----------
    values : array_like of float32, shape (rows, n)
        Whole blocks. Any number of leading axes.
    type : str
        F32, F16, BF16, Q8_0, Q5_1, Q5_0, Q4_1, Q4_0, IQ4_NL, Q4_K or Q6_K, in any case.

    Returns
    -------
    ndarray of uint8, shape (rows, bytes)
        Bit for bit what ggml's reference quantiser makes of finite values; of Q4_K and Q6_K the codes with the
        least squared error that were found.

    Raises
    ------
    ValueError
        Unknown type, or rows that are not whole blocks.
    UnsupportedError
        A type that can only be read.
    """

def read_metadata(path: str | os.PathLike[str]) -> dict[str, typing.Any]:
    """
    The key-value pairs of a GGUF file, which need not hold weights.

    Values are as in `Model.metadata`. Raises ModelError for a file that cannot be read or is not GGUF.
    """

def token_logprobs(
    logits: numpy.typing.NDArray[numpy.float32],
    tokens: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
) -> numpy.typing.NDArray[numpy.float64]:
    """
    Natural logarithms of the probabilities that rows give to tokens, one each.

    `logits` float32 (n, n_vocab), `tokens` (n,); the result is float64 (n,). Raises ValueError for rows
    that hold NaN or +inf, or nothing but -inf, IndexError for a token outside the vocabulary.
    """
