"""
The compiled part of plait. Import plait instead, which re-exports the public names.
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
    "Gradients",
    "KVCache",
    "Model",
    "ModelError",
    "Output",
    "SamplerChain",
    "SequenceHandle",
    "StateError",
    "Stats",
    "TensorInfo",
    "Trace",
    "Transaction",
    "UnsupportedError",
    "build_info",
    "check_adapter_unchanged",
    "check_unchanged",
    "choose_isa",
    "dequantize",
    "devices",
    "load_control_vector",
    "open_image_model",
    "quant_types",
    "quantize",
    "read_metadata",
    "token_logprobs",
    "version",
]

class Device:
    """
    A device on which a context can run; see `devices()`.
    """
    def __repr__(self) -> str: ...
    @property
    def description(self) -> str:
        """
        One-line description.
        """
    @property
    def features(self) -> list[str]:
        """
        Names of supported features.

        For the CPU, its instruction sets in ascending order; for Vulkan, device features and extensions.
        """
    @property
    def limits(self) -> dict[str, int]:
        """
        Limits of the device by name; empty for the CPU.
        """
    @property
    def memory(self) -> int:
        """
        Memory in bytes; 0 if unknown.

        For the CPU, the free memory when the device was listed; for others, the largest device-local heap.
        """
    @property
    def name(self) -> str:
        """
        Name for Context(backend=...) and in ctx.stats.nodes, such as "cpu" or "vulkan:0".
        """

class Adapter:
    """
    A low-rank adapter (LoRA, arXiv:2106.09685) of a model; see `Model.load_lora`.

    Immutable. It can be active in any number of contexts of its model.

    Source: cpp/runtime/steering/adapter.cpp
    """
    def __repr__(self) -> str: ...
    @property
    def alpha(self) -> float:
        """
        Scale alpha from the file, not yet divided by the rank. 0 if absent: the scale is 1.
        """
    @property
    def invocation_tokens(self) -> list[int]:
        """
        Token ids that activate an activated adapter (arXiv:2504.12397); empty for others.

        The adapter should be active from these tokens on; set it before decoding them.
        """
    @property
    def metadata(self) -> types.MappingProxyType[str, typing.Any]:
        """
        Key-value pairs of the file, as in `Model.metadata`; read-only.
        """
    @property
    def name(self) -> str:
        """
        Name of the adapter in the file; empty if the file has none.
        """
    @property
    def path(self) -> str:
        """
        Path of the file.
        """
    @property
    def weights(self) -> list[str]:
        """
        Names of the model tensors that the adapter changes.
        """

class TensorInfo:
    """
    Name, shape and element type of a tensor in a model file.
    """
    def __repr__(self) -> str: ...
    @property
    def dtype(self) -> str:
        """
        Name of the element type in GGUF, such as "F32" or "Q4_K".
        """
    @property
    def name(self) -> str:
        """
        Name of the tensor in the file.
        """
    @property
    def nbytes(self) -> int:
        """
        Size in the file in bytes.
        """
    @property
    def shape(self) -> tuple[int, ...]:
        """
        Shape, outermost axis first as in NumPy: a weight matrix is (n_out, n_in).
        """

class Model:
    """
    The metadata and weights of a GGUF model file.

    Immutable; any number of contexts and threads may share it. Weights are read when a context first
    needs them, once for all contexts that store them in the same format. The CPU needs matrices in
    another order than the file has. If they take at least 64 MB, they are kept in a file in that order,
    so that other processes and later runs open the model in a fraction of the time and share its
    memory.

    Args:
        path: Path of a GGUF file; for a split model, of the first file (name-00001-of-00003.gguf).
        mmap: Map the file into memory instead of reading it. The CPU still makes a reordered copy of
            matrices; see `packed_cache` for sharing them between processes. If a mapped file is
            truncated, every process that uses it dies with SIGBUS. Without mapping, a change of the file
            raises an error or has no effect.
        packed_cache: Folder that keeps reordered weights, for this model of any size; False to keep
            none; None or True for the folder in the environment variable PLAIT_PACKED_CACHE, unless
            that is "off", and without it for ~/.cache/plait. A folder keeps up to 32 GiB, and nothing
            beyond a restart of the machine, on network file systems for 30 days after it.

    Raises:
        ModelError: The file cannot be read or is invalid. The message names the defect.
        UnsupportedError: plait does not support the architecture or an element type.

    Source: cpp/runtime/loaded_model.cpp, cpp/backend/packed_file.h
    """
    def __init__(
        self,
        path: str | os.PathLike[str],
        mmap: bool = False,
        packed_cache: str | os.PathLike[str] | bool | None = None,
    ) -> None: ...
    def __repr__(self) -> str: ...
    def load_lora(
        self, path: str | os.PathLike[str], rank_stabilized: bool | None = None
    ) -> Adapter:
        """
        Open a low-rank adapter for this model, for use with `Context.set_lora`.

        Args:
            path: Path of a GGUF file, as written by llama.cpp's convert_lora_to_gguf.py.
            rank_stabilized: Scale by alpha / sqrt(rank) (arXiv:2312.03732) instead of alpha / rank. None:
                use adapter.lora.rank_stabilized from the file, which the converter does not write.

        Returns:
            The Adapter.

        Raises:
            ModelError: The file is not an adapter or is for another model. The message names the tensor.
            UnsupportedError: The adapter changes a tensor that is not a matrix.

        Source: cpp/runtime/steering/adapter.cpp
        """
    def tensor(self, name: str) -> numpy.ndarray:
        """
        Return a dequantised copy of a tensor.

        Args:
            name: Name of the tensor, a key of `tensors`.

        Returns:
            float32 ndarray with the shape of the tensor; int32 if its element type is I32.

        Raises:
            KeyError: The model has no such tensor.
            ModelError: The file has changed since it was opened.
        """
    def tensor_rows(
        self, name: str, rows: numpy.typing.ArrayLike
    ) -> numpy.typing.NDArray[numpy.float32]:
        """
        Return dequantised copies of rows of a matrix, such as the embeddings of tokens.

        Args:
            name: Name of the tensor, a key of `tensors`.
            rows: Row numbers, shape (n,).

        Returns:
            float32 ndarray of shape (n, n_in).

        Raises:
            KeyError: The model has no such tensor.
            ValueError: The tensor is not a matrix.
            IndexError: A row does not exist.
            ModelError: The file has changed since it was opened.
        """
    @property
    def arch(self) -> str:
        """
        Name of the architecture, such as "llama".
        """
    @property
    def metadata(self) -> types.MappingProxyType[str, typing.Any]:
        """
        Key-value pairs of the file, in file order; read-only.

        Values are int, float, bool, str, ndarray or list of str. Bytes that are not UTF-8 are kept as
        surrogates (PEP 383).
        """
    @property
    def n_ctx_train(self) -> int:
        """
        Context length in training, in tokens; 0 if the file does not state it.
        """
    @property
    def n_embd(self) -> int:
        """
        Length of an input or output embedding.
        """
    @property
    def n_layer(self) -> int:
        """
        Number of layers.
        """
    @property
    def n_mtp_layer(self) -> int:
        """
        Number of layers for multi-token prediction, which follow the others; 0 if the file has none or their architecture's are not supported.
        """
    @property
    def n_params(self) -> int:
        """
        Number of weights.
        """
    @property
    def n_pos_per_token(self) -> int:
        """
        Number of positions per token: 4 for M-RoPE, else 1.
        """
    @property
    def n_vocab(self) -> int:
        """
        Vocabulary size, which is the length of a row of logits.
        """
    @property
    def nbytes(self) -> int:
        """
        Total size of all tensors in the file in bytes.
        """
    @property
    def path(self) -> str:
        """
        Path of the file.
        """
    @property
    def tensors(self) -> types.MappingProxyType[str, TensorInfo]:
        """
        TensorInfo of each tensor by name, in file order; read-only.
        """

class Batch:
    """
    Tokens or embeddings to process, with sequence ids and positions.

    add(), add_sequence() and add_embeddings() copy their arguments; the arrays of from_arrays() are read
    when decode() is called. A batch can be decoded several times, but not changed during a call.

    A `Sequence` is accepted wherever a sequence id is expected. decode() checks that it is still open and
    belongs to the context. While a Sequence is open, decode() does not accept its bare id; this includes the
    default, 0.
    """
    @staticmethod
    def from_arrays(
        tokens: numpy.typing.ArrayLike,
        positions: numpy.typing.ArrayLike | None,
        seq_ids: numpy.typing.ArrayLike | None,
        logits: numpy.typing.ArrayLike,
    ) -> Batch:
        """
        Create a batch that refers to arrays.

        C-contiguous arrays of the given dtypes are not copied: decode() reads their contents at the time of
        the call. Tensors of other libraries that support DLPack (torch, jax) count as arrays. Other arguments
        are converted now. Adding entries to such a batch copies the arrays first. If the dtype, the strides or
        the shape of an array is changed in place, later uses of the batch raise BatchError.

        Args:
            tokens: int32 array of shape (n,).
            positions: int32 array of shape (n,) or (n, n_pos_per_token), not negative. None: every entry
                continues its sequence.
            seq_ids: int32 array of shape (n,) or (n, k), padded with -1 where a token has fewer than k
                sequences; or a list, which may contain Sequence objects. None: sequence 0.
            logits: bool array of shape (n,), True for each entry that requests an output row.

        Returns:
            The Batch.

        Raises:
            BatchError: A shape does not match, or a value does not fit int32.
            TypeError: An element is not an integer, or in `logits` not a bool.
        """
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def __repr__(self) -> str: ...
    def _repr_html_(self) -> str: ...
    def add(
        self,
        token: typing.SupportsIndex,
        pos: typing.SupportsIndex | numpy.typing.ArrayLike | None = None,
        seq: typing.SupportsIndex | collections.abc.Iterable[typing.SupportsIndex] = 0,
        logits: bool = False,
    ) -> None:
        """
        Add one token.

        Args:
            token: Token id.
            pos: Position in the sequence, from 0. For M-RoPE models (t, y, x, 0); an int p is short for
                (p, p, p, 0). None: the position after the largest one of the sequence.
            seq: Sequence or id, or several. A token of several sequences is computed once and shared.
            logits: Request an output row.

        Raises:
            BatchError: The batch contains embeddings, a position is negative, or a value does not fit
                int32.
            TypeError: An argument has the wrong type.
        """
    def add_embeddings(
        self,
        array: numpy.typing.ArrayLike,
        seq: typing.SupportsIndex | collections.abc.Iterable[typing.SupportsIndex] = 0,
        pos: typing.SupportsIndex | numpy.typing.ArrayLike | None = None,
        logits: str | numpy.typing.ArrayLike = "last",
        both_directions: bool = False,
    ) -> None:
        """
        Add consecutive entries as embeddings instead of token ids.

        Args:
            array: float32 array of shape (n, n_embd).
            seq: Sequence or id, or several.
            pos: Position of the first entry, or positions of shape (n,) or (n, n_pos_per_token). None: the
                entries continue the sequence.
            logits: Which entries request an output row: "last", "all", "none" or a bool array of shape (n,).
            both_directions: True if entries also attend to later entries of their sequence in this batch, as
                the embeddings of an image do in Gemma 3. In Gemma 4, this holds for layers with a sliding
                window only. The entries of a sequence are then computed at once, so there may be at most
                n_ubatch.

        Raises:
            BatchError: The batch contains tokens, embeddings of another width, or others whose
                `both_directions` differs; or a shape does not match.
            TypeError: The elements are not floats.
            ValueError: `logits` is another string.
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

        Args:
            tokens: Token ids, shape (n,). Adds nothing if n is 0.
            seq: Sequence or id, or several.
            pos: Position of the first token, or positions of shape (n,) or (n, n_pos_per_token). None: the
                tokens continue the sequence.
            logits: Which tokens request an output row: "last", "all", "none" or a bool array of shape (n,).

        Raises:
            BatchError: The batch contains embeddings, a shape does not match, a position is negative, or a
                value does not fit int32.
            TypeError: An element is not an integer.
            ValueError: `logits` is another string.
        """
    def clear(self) -> None:
        """
        Remove all entries.

        Raises:
            BatchError: A context is reading the batch.
        """
    def to_arrays(
        self,
    ) -> tuple[
        numpy.ndarray,
        typing.Any,
        numpy.typing.NDArray[numpy.int32],
        numpy.typing.NDArray[numpy.bool],
    ]:
        """
        Return copies of the entries as arrays.

        Returns:
            A tuple (tokens, positions, seq_ids, logits). `tokens` is int32 (n,), or float32 (n, n_embd) for
            embeddings. `positions` is int32, (n,) or (n, n_pos_per_token), -1 where an entry continues its
            sequence; or None if all do. `seq_ids` is int32 (n, k), padded with -1 where an entry has fewer
            than k sequences. `logits` is bool (n,), True for each entry that requests an output row.
            add_embeddings() also needs the attribute `both_directions`, which is not among them.

        Raises:
            BatchError: The dtype, the strides or the shape of an array of from_arrays() has been changed, or
                a position is negative.
        """
    @property
    def both_directions(self) -> bool:
        """
        True if the entries also attend to later entries of their sequence: see add_embeddings().
        """

class Output:
    """
    The result of decode() or encode().

    The arrays are views, without a copy, of memory that belongs to this output alone. They stay valid and
    unchanged while they exist, whatever the context does next. They are writable because some DLPack
    consumers require it. plait never writes them again; `out[i]` and notebooks read them, so change a copy.
    torch.from_dlpack(output) and its counterparts in other libraries share the logits, or the embeddings if
    there are no logits.

    len() returns the number of rows, and iteration yields the rows of logits. A notebook displays the most
    probable tokens of each row.
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
        Return the logits of a batch entry.

        Args:
            index: Index of the entry in the batch; negative indices count from the end.

        Returns:
            float32 ndarray of shape (n_vocab,).

        Raises:
            IndexError: The entry does not exist or requested no output row.
        """
    def __iter__(self) -> collections.abc.Iterator[numpy.typing.NDArray[numpy.float32]]: ...
    def __len__(self) -> int: ...
    def __repr__(self) -> str: ...
    def _repr_html_(self) -> str: ...
    @property
    def embeddings(self) -> numpy.typing.NDArray[numpy.float32] | typing.Any:
        """
        float32 ndarray of shape (n_outputs, n_embd), or None if there are no embeddings.

        Pooled embeddings have shape (n_seqs, n_embd), in order of sequence id; "rank" pooling gives scores of
        shape (n_seqs, n_scores). Not normalised.
        """
    @property
    def indices(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        int32 ndarray of shape (n_outputs,): the batch entry of each row.

        With pooling, the last entry of each sequence.
        """
    @property
    def logits(self) -> numpy.typing.NDArray[numpy.float32] | typing.Any:
        """
        float32 ndarray of shape (n_outputs, n_vocab), or None if there are no logits.

        Unnormalised natural log-probabilities of the next token. There is one row for each entry that
        requested one, in batch order.
        """
    @property
    def model(self) -> typing.Any:
        """
        The Model that computed the output, or None if it no longer exists.
        """

class Context:
    """
    Runs a model on batches and stores the KV cache of its sequences.

    All settings are fixed at construction. Contexts are independent of each other and may share a model.
    Calls from several threads to one context run one after another. A closed context raises ValueError.

    Args:
        model: The Model to run.
        n_ctx: Max cells per sequence, never rounded. None: the training length, or less if the cache
            would take more than half of the free memory.
        n_seq_max: Max number of sequences. Ids are 0 to n_seq_max - 1.
        kv: How sequences share cache rows: "unified" (one table for all sequences), "streams" (n_ctx
            rows per sequence) or "auto" (same as "unified").
        kv_cells: Number of rows of the unified table. None: n_ctx * n_seq_max.
        type_k: Element type of cached keys: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl.
        type_v: Element type of cached values; same choices as `type_k`.
        n_batch: Max entries per call.
        n_ubatch: Max tokens computed at once. Longer batches are split into microbatches.
        backend: "cpu", "vulkan", "vulkan:1", a list such as "vulkan:0,vulkan:1", or "auto" (the first
            GPU if there is one, else the CPU). Operations without a kernel on a device run on the CPU.
        n_gpu_layers: Number of layers to run on devices, with their caches; the others run on the CPU.
            The last layers are chosen, and the output layer counts as one. -1: all layers. None: as
            many as fit in device memory.
        split: Relative number of these layers for each device. None: in proportion to free memory.
        layers: The layers to run, such as range(8, 16); None: all. Only their weights are loaded, and only
            they have caches. If the range does not start at 0, batches have the residual stream that
            enters its first layer (Batch.add_embeddings()) instead of tokens. If it does not end at the
            last layer, outputs have the residual stream after its last layer as `embeddings`, and no
            logits. For encoder-decoder models, the range is one of the decoder; the encoder runs whole.
            range(n_layer, n_layer + 1) is the first of Model.n_mtp_layer layers for multi-token
            prediction, as used by MTP: a row of its input is a hidden state, after the output norm, and
            the embedding of the next token, (n, 2 * n_embd).
        threads: Number of CPU threads. None: the number of physical cores available to this process.
        isa: Highest CPU instruction set to use: "scalar", "avx2", "avx512" or "amx"; on ARM, "scalar",
            "neon", "neon_i8mm" or "neon_bf16". "blas" multiplies more than 16 rows by OpenBLAS, which must
            be installed, and makes `ctx.invariant` False. None: the best available one; "blas" only on
            other processors than x86-64 and ARM. The environment variable PLAIT_ISA sets the same limit
            for the whole process.
        flash_attention: True computes attention in one pass over the keys; False stores all scores
            first. "auto" chooses.
        embeddings: Return embeddings as well.
        pooling: How to reduce the embeddings of each sequence to one: "auto" (from the model), "none",
            "mean", "cls", "last" or "rank". A value other than "auto" and "none" returns these instead of
            logits; "auto" does so only if `embeddings` is True. "rank" returns the scores of the model's
            classification head: one per label, or one from a reranker.
        causal: True if a token attends only to earlier tokens. None: from the model.
        graph_reuse: Keep plans for later steps of the same shape. Turn off only for comparison.
        fuse: Run operations together if that is cheaper; the output bits are the same. Turn off only for
            comparison.
        invariant: Make the logits of a sequence bitwise independent of the rest of the batch. False only
            changes `ctx.invariant`: there is no faster arithmetic that it would allow.
        swa_full: Keep all cells in layers with a sliding window.
        defrag_threshold: Value of `kv.fragmentation` above which decode() defragments the cache before a
            step. It is checked from time to time. None: never.

    Raises:
        ValueError: An argument is invalid. The message names the argument, its value and the expected
            values.
        BackendError: This machine does not have the device or the instruction set.
        UnsupportedError: The model does not support this combination of arguments; for example `layers` if
            its layers read more than the residual stream of earlier ones, as those of Gemma 3n and Gemma 4
            do.
        MemoryError: There is too little memory.

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
        layers: range | None = None,
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
        Free the cache and the plans. Outputs and statistics stay valid.

        Does nothing if the context is closed.
        """
    def decode(self, batch: Batch) -> Output:
        """
        Run a batch and store its keys and values in the cache.

        If an exception is raised, the cache is as it was before the call, except that a call which fails
        while it computes may have applied pending shifts. The GIL is released. Signal handlers run about
        every 20 ms, so Ctrl-C ends the call.

        Args:
            batch: The batch. The entries of each sequence must continue where its cached positions end.

        Returns:
            An Output with one row for each entry that requested one, in batch order.

        Raises:
            BatchError: The batch is empty or longer than n_batch, or an entry is invalid. The message names
                the entry, its value and what was expected.
            ValueError: The context is closed, or the batch has tokens and the context does not start at layer
                0.
            CacheFull: Too few cells are free; see the attributes `needed` and `free`.
            UnsupportedError: The model divides the embeddings of an image into parts, and layers that the
                context does not run read some of them.
            BackendError: A device failed.

        Source: cpp/runtime/step/step_runner.cpp
        """
    def encode(self, batch: Batch) -> Output:
        """
        Run the encoder and store its output for the sequences of the batch.

        For other models, computes what decode() would on an empty cache, and changes nothing. Every sequence
        of the batch starts anew, at any position.

        Args:
            batch: The batch.

        Returns:
            An Output with one row for each entry that requested one, in batch order.

        Raises:
            BatchError: The batch is invalid; other errors are those of decode().
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
        Return the nodes of the plan for a step of the given size; used by `graph`.

        Args:
            n_tokens: Number of tokens.
            n_seqs: Number of sequences.
            n_outputs: Number of output rows.
            embeddings: The entries are embeddings instead of token ids.
            encode: The step is one of encode() instead of decode().

        Returns:
            One dict per node.

        Raises:
            ValueError: This context cannot run such a step.
        """
    def set_control_vector(
        self,
        vector: numpy.typing.ArrayLike | None,
        first_layer: typing.SupportsIndex = 1,
        last_layer: typing.SupportsIndex | None = None,
        *,
        seq: typing.SupportsIndex | collections.abc.Iterable[typing.SupportsIndex] | None = None,
    ) -> None:
        """
        Add a control vector to the layer outputs in all later calls (arXiv:2310.01405).

        Cached keys and values do not change. No new plan is built when the vector is replaced for
        the same layers, or when more sequences get separate vectors. On the CPU, the results of a sequence
        have the same bits as if it were decoded alone with the same vector. A fork starts with the vector of
        `seq=None`, and closing a `Sequence` removes the vector set for it.

        Args:
            vector: float32 array of shape (n_layer, n_embd). Row i is added to the output of layer i,
                blk.i.l_out; trailing rows may be missing. In a model with an encoder, the rows apply to the
                decoder layers. None removes the vector.
            first_layer: First layer that the vector is added to. The default omits layer 0, as in llama.cpp.
            last_layer: Last layer that the vector is added to. None: the last layer of the model.
            seq: The sequences to set the vector for: an id, a `Sequence`, or several. Others keep theirs.
                None: all sequences, including those that have a separate vector.

        Raises:
            ValueError: The shape is wrong, a number is not finite, a layer does not exist, or a sequence
                does not exist, is closed or belongs to another context. In a later call: a token belongs to
                several sequences with different vectors, or of which only some have one.

        Source: cpp/graph/rewrite.cpp
        """
    def set_lora(
        self,
        adapters: collections.abc.Mapping[Adapter, float] | None,
        *,
        seq: typing.SupportsIndex | collections.abc.Iterable[typing.SupportsIndex] | None = None,
    ) -> None:
        """
        Set the adapters for all later calls: y = W x + sum of scale * B A x.

        Replaces the previous adapters. Changing only the scales, or returning to an earlier set, builds no
        plan. Cached keys and values do not change. The context keeps every adapter that it has used in
        memory until it is closed.

        Sequences may use different adapters in one call. On the CPU, the results of a sequence have the same
        bits as if it were decoded alone with the same adapters. A fork starts with the adapters of
        `seq=None`, and closing a `Sequence` removes those set for it. `kv.save(seq=...)` records the
        adapters of that sequence.

        Args:
            adapters: Scale of each adapter, as a dict of Adapter to float. The adapters come from
                `Model.load_lora` of this context's model and are summed in the order in which they were
                loaded. None or {} removes all adapters.
            seq: The sequences that use these adapters: an id, a `Sequence`, or several. Others keep theirs.
                None: all sequences, including those that have separate adapters.

        Raises:
            ValueError: An adapter is for another model, a scale is not finite, or a sequence does not
                exist, is closed or belongs to another context. In a later call: a token belongs to several
                sequences that use different adapters.
            UnsupportedError: An adapter changes a weight that this model does not use in a matrix product.

        Source: cpp/graph/low_rank.cpp
        """
    def transaction(self) -> Transaction:
        """
        Make the calls of a `with` block take effect together or not at all.

        The block contains any number of calls that change the cache: decode(), encode(), the methods of
        `kv`, of sequences and of `sequence()`. An exception that leaves the block, or `rollback()`, undoes
        them: sequences, their handles, cells and pending shifts are as at the beginning. Transactions nest,
        and ending an inner one normally makes its calls part of the outer one. Outputs, statistics,
        captures, edits, adapters and control vectors are not part of a transaction.

        No cell is copied in advance. A cell that the block may restore stays in memory until its end and
        counts as used, so a call can raise CacheFull earlier than without the transaction; cells whose
        contents or positions change are copied first. Cells with a pending shift are copied by the next
        decode() of any sequence, and by keys(), values(), write(), to_bytes(), save() and copy_to(). Recurrent
        layers have room for the states of one transaction over all n_seq_max sequences. The cache is not
        defragmented meanwhile.

        A handle opened in a block that is undone is closed; one closed in it is open again, with its
        adapters and its control vector, unless its object was deleted. Calls of other threads are part of
        the block too.

        Returns:
            A context manager, of which `rollback()` undoes the block.

        Raises:
            ValueError: The context is closed. Raised by the end of the block: it ends in another thread, or
                a transaction inside of it is still open, and both were undone.

        Example:
            with ctx.transaction() as tx:
                out = ctx.decode(batch)
                if out.logits[0].argmax() != token:
                    tx.rollback()
        """
    def value_names(self) -> list[str]:
        """
        Return the names of the intermediate values that `capture` can record.
        """
    def value_shape(self, name: str) -> tuple[int, ...]:
        """
        Return the shape of one token's row of an intermediate value.

        Args:
            name: Name of the value, one of value_names().

        Returns:
            The shape, such as (n_embd,) or (n_head, head_dim).
        """
    @property
    def causal(self) -> bool:
        """
        True if a token attends only to earlier tokens.
        """
    @property
    def closed(self) -> bool:
        """
        True if close() was called.
        """
    @property
    def compute_bytes(self) -> int:
        """
        Size in bytes of the buffers for inputs and intermediate values.

        Construction allocates enough for the largest step of decode().
        """
    @property
    def devices(self) -> list[str]:
        """
        Names of the devices in use, as in `devices()`; the CPU comes last.

        A device listed twice in `backend` appears as "vulkan:0" and "vulkan:0/2".
        """
    @property
    def flash_attention(self) -> bool:
        """
        True if attention is computed in one pass over the keys.
        """
    @property
    def fuse(self) -> bool:
        """
        True if operations are fused where that is cheaper.
        """
    @property
    def graph_reuse(self) -> bool:
        """
        True if plans are kept for later steps.
        """
    @property
    def invariant(self) -> bool:
        """
        True if logits are bitwise independent of the rest of the batch.
        """
    @property
    def layers(self) -> range:
        """
        The layers that the context runs, as a range.
        """
    @property
    def model(self) -> Model:
        """
        The Model that the context runs.
        """
    @property
    def n_batch(self) -> int:
        """
        Max entries per call.
        """
    @property
    def n_ctx(self) -> int:
        """
        Max cells per sequence.
        """
    @property
    def n_seq_max(self) -> int:
        """
        Max number of sequences.
        """
    @property
    def n_ubatch(self) -> int:
        """
        Max tokens computed at once.
        """
    @property
    def pooling(self) -> str:
        """
        Pooling of token embeddings: "none", "mean", "cls", "last" or "rank".
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
    Records intermediate values of calls; see plait.inspect.capture.
    """
    def __enter__(self) -> Capture: ...
    def __exit__(self, kind: typing.Any, error: typing.Any, trace: typing.Any) -> None: ...
    def __init__(self, context: Context, names: list[str]) -> None: ...
    @property
    def calls(self) -> list[dict[str, numpy.typing.NDArray[numpy.float32] | typing.Any]]:
        """
        The recorded values of each call by name.

        Each value is a float32 ndarray of shape (n_rows, ...). Values that a call did not compute are omitted.
        """
    @property
    def names(self) -> list[str]:
        """
        Names of the recorded values, in order of computation.
        """

class Gradients:
    """
    Computes the gradients of the function _of of the logits; see plait.inspect.gradients.
    """
    @staticmethod
    def known(context: Context) -> list[str]:
        """
        Return the names of the values that have a gradient.
        """
    def __enter__(self) -> Gradients: ...
    def __exit__(self, kind: typing.Any, error: typing.Any, trace: typing.Any) -> None: ...
    def __init__(self, context: Context, names: list[str]) -> None: ...
    @property
    def calls(self) -> list[dict[str, numpy.typing.NDArray[numpy.float32] | typing.Any]]:
        """
        The gradients of each call by name.

        Each is a float32 ndarray of the shape of the value, (n_rows, ...), in batch order.
        """
    @property
    def losses(self) -> list[float]:
        """
        Value of the loss in each call.
        """
    @property
    def names(self) -> list[str]:
        """
        Names of the values.
        """

class Edit:
    """
    Changes an intermediate value as its attribute _what defines; see plait.inspect.edit.
    """
    def __enter__(self) -> Edit: ...
    def __exit__(self, kind: typing.Any, error: typing.Any, trace: typing.Any) -> None: ...
    def __init__(
        self,
        context: Context,
        name: str,
        mode: str,
        sequences: collections.abc.Iterable[typing.SupportsIndex] | None,
        positions: numpy.typing.ArrayLike | None,
    ) -> None: ...
    @property
    def name(self) -> str:
        """
        Name of the value.
        """
    @property
    def number(self) -> int:
        """
        0 outside of a `with` block. Inside, larger than that of every edit opened earlier.
        """

class Trace:
    """
    Records when each thread runs which operation; see plait.inspect.graph.
    """
    def __enter__(self) -> Trace: ...
    def __exit__(self, kind: typing.Any, error: typing.Any, trace: typing.Any) -> None: ...
    def __init__(self, context: Context) -> None: ...
    def taken(self) -> list[tuple[str, str, int, int, int]] | None:
        """
        Return the events of the last `with` block once.

        Returns:
            A list of (operation, name, thread, begin, end), with times in nanoseconds of a monotonic clock.
            None if the events were returned before.
        """

class Transaction:
    """
    A `with` block of calls that can be undone, returned by `Context.transaction()`.
    """
    def __enter__(self) -> Transaction: ...
    def __exit__(self, kind: typing.Any, error: typing.Any, trace: typing.Any) -> None: ...
    def rollback(self) -> None:
        """
        Undo all calls since the beginning of the block.

        Ends the transaction: later calls of the block are not part of it.

        Raises:
            ValueError: The transaction is not open, an inner one is open, another thread entered it, or
                the context is closed.
        """
    @property
    def open(self) -> bool:
        """
        True inside the block, until rollback().
        """

class SequenceHandle:
    """
    A reserved sequence id. It is released when the object is closed or destroyed.

    plait.Sequence is the public class.

    Args:
        context: The context whose id is reserved.

    Raises:
        CacheFull: All ids are in use.
    """
    def __init__(self, context: Context) -> None: ...
    def belongs_to(self, context: Context) -> bool:
        """
        Return whether this is an open handle of a context.

        Args:
            context: The context.
        """
    def close(self) -> None:
        """
        Free the cells and release the id.

        The rollback of a transaction that was open undoes this. Does nothing if the handle or the context is
        already closed.
        """
    @property
    def closed(self) -> bool:
        """
        True once close() was called.
        """
    @property
    def id(self) -> int:
        """
        The sequence id.
        """

class KVCache:
    """
    The cache of a context: rows of keys and values, and the sequences that hold them.

    Methods take a `Sequence` or its id. While a Sequence is open, only methods that read the cache
    accept its bare id. Position ranges are half-open, [p0, p1); a p1 of None means the end of the
    sequence. A method that raises or returns False leaves the cache unchanged.

    Args:
        context: The context that owns the cache.

    Raises:
        ValueError: Raised by every method if a sequence id is outside [0, n_seq_max) or is that of an open
            Sequence, a Sequence is closed or of another context, a position is negative, p0 exceeds p1,
            or the context is closed.
        TypeError: Raised by every method if an argument is not an integer.
    """
    def __init__(self, context: Context) -> None: ...
    def __repr__(self) -> str: ...
    def _discard(
        self, seq: typing.SupportsIndex, p0: typing.SupportsIndex, p1: typing.SupportsIndex
    ) -> None:
        """
        Remove positions [p0, p1) and move later ones back to close the gap; used by shift().

        Args:
            seq: Sequence id.
            p0: First position to remove.
            p1: End of the range, exclusive.

        Raises:
            UnsupportedError: This kind of cache cannot remove that range or change positions.
            CacheFull: Copying shared cells needs more cells than are free.
        """
    def cells(self) -> numpy.ndarray:
        """
        Return a table of the used cells, for inspection.

        Returns:
            Structured ndarray with one row for each cell that a sequence holds; in a transaction, n_used
            also counts cells that only the transaction keeps. The fields are `row` (int32, storage row),
            `stream` (int32), `pos` (int32, shape (n_pos_per_token,)), `shift` (int32, rotation not yet
            applied) and `seqs` (bool, shape (n_seq_max,), True for each sequence that holds the cell).
        """
    def check_named(self, seq: typing.SupportsIndex) -> None:
        """
        Check that an argument names a sequence as in methods that change it; used by export().

        Args:
            seq: The argument.

        Raises:
            ValueError: The id belongs to an open Sequence, or the Sequence is closed or of another context.
        """
    def clear(self) -> None:
        """
        Remove all sequences.
        """
    def copy_to(self, other: Context) -> None:
        """
        Replace the cache of another context with a copy of this one.

        Args:
            other: A context of the same model with the same cache types.

        Raises:
            StateError: The contexts do not match; other errors are those of from_bytes().
        """
    def defrag(self, max_moves: typing.SupportsIndex | None = None) -> int:
        """
        Move the used cells of every stream to its front, in long runs.

        Speeds up attention. The contents of cells, including pending shifts, do not change by a single bit.
        A batch never needs defragmentation to fit.

        Args:
            max_moves: Max moves per round, at least 1; there are as many rounds as needed. None: 1024.

        Returns:
            Number of cells moved; 0 if there was nothing to do. See `last_defrag` for details.

        Raises:
            ValueError: `max_moves` is less than 1.
        """
    def from_bytes(
        self,
        data: bytes | bytearray | memoryview | numpy.typing.NDArray[numpy.uint8],
        seq: typing.SupportsIndex | None = None,
    ) -> None:
        """
        Restore a state that to_bytes() saved from any context of the same model.

        A state of all sequences replaces the whole cache; a state of one sequence replaces that sequence.
        n_ctx, n_seq_max, kv ("unified" or "streams"), flash_attention and the device may differ if the state
        fits. The cache is unchanged if an exception is raised.

        Args:
            data: The saved bytes, in any contiguous buffer.
            seq: Id of the sequence to load a single-sequence state into. None: the id it was saved from.

        Raises:
            StateError: The bytes are damaged or are not a state, or the model, the cache types or the window
                differ. The message names the difference.
            CacheFull: The state needs more cells than are free.
        """
    def keys(
        self, layer: typing.SupportsIndex, seq: typing.SupportsIndex
    ) -> numpy.typing.NDArray[numpy.float32]:
        """
        Return a copy of the cached keys of a sequence.

        Args:
            layer: Layer index, from 0.
            seq: Sequence id.

        Returns:
            float32 ndarray of shape (n_pos, n_head_kv, head_dim), in order of position. The keys are
            rotated for their positions; pending shifts are applied.

        Raises:
            IndexError: The layer does not exist.
            ValueError: The id is invalid.
            UnsupportedError: The layer caches no keys.
        """
    def load(self, path: str | os.PathLike[str], seq: typing.SupportsIndex | None = None) -> None:
        """
        Restore a state from a file that save() wrote.

        Args:
            path: Path of the file.
            seq: Id of the sequence to load a single-sequence state into. None: the id it was saved from.

        Raises:
            StateError: The file cannot be read; other errors are those of from_bytes().
        """
    def save(self, path: str | os.PathLike[str], seq: typing.SupportsIndex | None = None) -> None:
        """
        Write to_bytes(seq) to a file.

        An existing file is replaced atomically at the end. A process that dies earlier leaves the old file
        and "{path}.plait-tmp", which the next save to the same path removes.

        Args:
            path: Path of the file.
            seq: Id of the sequence to save. None: all sequences.

        Raises:
            StateError: The file cannot be written.
        """
    def seq_add(
        self,
        seq: typing.SupportsIndex,
        p0: typing.SupportsIndex,
        p1: typing.SupportsIndex | None,
        delta: typing.SupportsIndex,
    ) -> None:
        """
        Add `delta` to positions [p0, p1) of a sequence.

        Cached keys are rotated to their new positions before they are next read. Cells shared with another
        sequence are copied first. Keys of layers without rotation stay as they are.

        Args:
            seq: Sequence id.
            p0: First position to change.
            p1: End of the range, exclusive. None: the end of the sequence.
            delta: Number to add; may be negative.

        Raises:
            ValueError: A position would become negative, or the order of positions would change.
            CacheFull: Copying shared cells needs more cells than are free.
            UnsupportedError: Tokens have several position axes, or the sequence would attend to keys that its
                window has freed.
        """
    def seq_cp(
        self,
        src: typing.SupportsIndex,
        dst: typing.SupportsIndex,
        p0: typing.SupportsIndex = 0,
        p1: typing.SupportsIndex | None = None,
    ) -> None:
        """
        Copy positions [p0, p1) of one sequence to another.

        Replaces the content of `dst` in that range; the rest of `dst` stays. Cells are shared if the kind
        of cache supports it, otherwise copied. For an encoder-decoder, a range that begins at 0 also replaces
        the encoder's output of `dst`. Does nothing if `src` equals `dst`.

        Args:
            src: Id of the sequence to copy from.
            dst: Id of the sequence to copy to.
            p0: First position to copy.
            p1: End of the range, exclusive. None: the end of the sequence.

        Raises:
            ValueError: An id or the range is invalid.
            UnsupportedError: This kind of cache cannot copy that range.
            CacheFull: The copy needs more cells than are free.
        """
    def seq_div(
        self,
        seq: typing.SupportsIndex,
        p0: typing.SupportsIndex,
        p1: typing.SupportsIndex | None,
        divisor: typing.SupportsIndex,
    ) -> None:
        """
        Divide positions [p0, p1) of a sequence by `divisor`, rounding down.

        Several positions may become equal.

        Args:
            seq: Sequence id.
            p0: First position to change.
            p1: End of the range, exclusive. None: the end of the sequence.
            divisor: At least 1.

        Raises:
            ValueError: `divisor` is less than 1; other errors are those of seq_add().
        """
    def seq_keep(self, seq: typing.SupportsIndex) -> None:
        """
        Remove every other sequence.

        Args:
            seq: Id of the sequence to keep.

        Raises:
            ValueError: The id is invalid.
        """
    def seq_len(self, seq: typing.SupportsIndex) -> int:
        """
        Return the number of cells of a sequence.

        Args:
            seq: Sequence id.

        Returns:
            The number of cells, including cells shared with other sequences.

        Raises:
            ValueError: The id is invalid.
        """
    def seq_pos_max(self, seq: typing.SupportsIndex) -> int:
        """
        Return the largest position of a sequence.

        Args:
            seq: Sequence id.

        Returns:
            The largest position on any axis, or -1 if the sequence is empty.

        Raises:
            ValueError: The id is invalid.
        """
    def seq_pos_min(self, seq: typing.SupportsIndex) -> int:
        """
        Return the smallest position of a sequence.

        Args:
            seq: Sequence id.

        Returns:
            The smallest position, or -1 if the sequence is empty.

        Raises:
            ValueError: The id is invalid.
        """
    def seq_rewind(self, seq: typing.SupportsIndex, pos: typing.SupportsIndex) -> int:
        """
        Roll a sequence back so that it ends before position `pos`, or earlier if necessary.

        Sliding windows and recurrent states discard what a sequence no longer needs. Such a sequence can
        return only to a point that a fork of it (seq_cp) still holds, to its start, or to a position whose
        window is still stored.

        Args:
            seq: Sequence id.
            pos: First position to remove.

        Returns:
            The position at which the sequence continues; decode the tokens from there again.

        Raises:
            ValueError: The id or the position is invalid.
        """
    def seq_rm(
        self,
        seq: typing.SupportsIndex,
        p0: typing.SupportsIndex = 0,
        p1: typing.SupportsIndex | None = None,
    ) -> bool:
        """
        Remove positions [p0, p1) from a sequence.

        Cells shared with other sequences stay in those sequences. For an encoder-decoder, removing everything
        (p0=0, p1=None) also removes the encoder's output.

        Args:
            seq: Sequence id.
            p0: First position to remove.
            p1: End of the range, exclusive. None: the end of the sequence.

        Returns:
            False if this kind of cache cannot remove that range, else True. True for an empty range.

        Raises:
            ValueError: The id or the range is invalid.
        """
    def to_bytes(self, seq: typing.SupportsIndex | None = None) -> bytes:
        """
        Return the contents of the cache as bytes.

        The bytes include the model's identity, the cache types and checksums. Equal contents give equal
        bytes, regardless of the storage rows and of earlier operations. Pending shifts are applied first.

        Args:
            seq: Id of the sequence to save. None: all sequences.

        Returns:
            The saved state.

        Raises:
            ValueError: The id is invalid.

        Source: cpp/runtime/state/state_format.h
        """
    def values(
        self, layer: typing.SupportsIndex, seq: typing.SupportsIndex
    ) -> numpy.typing.NDArray[numpy.float32]:
        """
        Return a copy of the cached values of a sequence.

        Args:
            layer: Layer index, from 0.
            seq: Sequence id.

        Returns:
            float32 ndarray of shape (n_pos, n_head_kv, head_dim), in order of position.

        Raises:
            IndexError: The layer does not exist.
            ValueError: The id is invalid.
            UnsupportedError: The layer caches no values.
        """
    def write(
        self,
        seq: typing.SupportsIndex,
        layer: typing.SupportsIndex,
        positions: typing.SupportsIndex | numpy.typing.ArrayLike | None,
        keys: numpy.typing.ArrayLike | None = None,
        values: numpy.typing.ArrayLike | None = None,
    ) -> None:
        """
        Replace cached keys and values of one layer at some positions of a sequence.

        The rows are as keys() and values() return them: in order of `positions`, with keys rotated for
        their positions. They are rounded to the type of the cache. Cells that other sequences share are
        copied first, so those sequences keep their rows; a copied cell is copied for all layers. Later
        tokens attend to the new rows; outputs and cells computed before stay as they are. Nothing is
        written if the call raises.

        Args:
            seq: Sequence id.
            layer: Layer index, from 0.
            positions: The positions to write, in any order: an int, a range or an array of distinct
                integers. The sequence must have exactly one token at each of them.
            keys: float32 (n, n_head_kv, head_dim), one row for each position. None: keys stay as they are.
            values: float32 (n, n_head_kv, head_dim). None: values stay as they are.

        Raises:
            IndexError: The layer does not exist.
            TypeError: `positions` has no integers, or `keys` or `values` no floating-point numbers.
            ValueError: The id is invalid, neither `keys` nor `values` is given, a shape is wrong, a
                position is not cached or is given twice, or a number is not finite or too large for the type of
                the cache.
            CacheFull: Copying shared cells needs more cells than are free.
            UnsupportedError: The layer caches no keys and values, for example because it is recurrent, or
                its values are part of its keys and `values` is given.

        Example:
            ctx.decode(batch)
            values = ctx.kv.values(1, seq=0)
            ctx.kv.write(0, 1, range(1, 3), values=0.5 * values[1:3])
        """
    @property
    def can_partial_remove(self) -> bool:
        """
        True if part of a sequence can be removed with seq_rm().
        """
    @property
    def can_shift(self) -> bool:
        """
        True if positions can be changed with seq_add() and seq_div().
        """
    @property
    def fragmentation(self) -> float:
        """
        Share of attention steps that are needed only because runs of cells are short, from 0 to 1.

        0 if all runs have at least 32 cells or cannot be longer; close to 1 if every cell is isolated. Also
        0 if the sequences hold fewer than 256 cells.
        """
    @property
    def in_transaction(self) -> bool:
        """
        True while a transaction of the context is open.
        """
    @property
    def kind(self) -> str:
        """
        Kind of the cache, as a str.

        One of "unified", "streams", "sliding", "recurrent", "hybrid", "cross" and "none".
        """
    @property
    def last_defrag(self) -> Defrag | None:
        """
        Figures of the last defragmentation, explicit or automatic. None if there was none.
        """
    @property
    def n_cells(self) -> int:
        """
        Total number of cells.
        """
    @property
    def n_free(self) -> int:
        """
        Number of cells that can be taken: n_cells - n_used.
        """
    @property
    def n_replaced(self) -> int:
        """
        Number of times that load(), from_bytes(), copy_to() or a rollback replaced all sequences.

        A program that uses the sequences can compare it to notice that another one replaced them.
        """
    @property
    def n_seq_max(self) -> int:
        """
        Max number of sequences.
        """
    @property
    def n_streams(self) -> int:
        """
        Number of streams: n_seq_max if each sequence has its own rows, else 1.
        """
    @property
    def n_used(self) -> int:
        """
        Number of cells that a sequence holds or an open transaction keeps.
        """
    @property
    def nbytes(self) -> int:
        """
        Size of all cells in bytes, used or not.
        """

class Defrag:
    """
    Figures of one defragmentation; see `KVCache.last_defrag`.
    """
    def __repr__(self) -> str: ...
    @property
    def automatic(self) -> bool:
        """
        True if decode() started it, False if defrag() did.
        """
    @property
    def bytes(self) -> int:
        """
        Number of bytes copied on the device.
        """
    @property
    def cells(self) -> int:
        """
        Number of cells moved.
        """
    @property
    def moves(self) -> int:
        """
        Number of moves. Adjacent cells that move together count as one move.

        Layer groups with separate cells count separately.
        """
    @property
    def records(self) -> numpy.ndarray:
        """
        The moves in order, as a structured ndarray of shape (moves,).

        The fields are int32: `group` (index of the group of layers that share cells), `from`, `to` and `n`.
        Cells [from, from + n) moved to [to, to + n).
        """
    @property
    def rounds(self) -> int:
        """
        Number of rounds, each of at most `max_moves` moves.
        """
    @property
    def seconds(self) -> float:
        """
        Wall time in seconds.
        """

class Stats:
    """
    Counters and times of a context since construction or the last reset.

    The attributes are live values, not a snapshot. After the context is closed they keep their last
    values.

    Args:
        context: The context.
    """
    def __init__(self, context: Context) -> None: ...
    def __repr__(self) -> str: ...
    def reset(self) -> None:
        """
        Reset all counters and times to zero.
        """
    @property
    def commands_recorded(self) -> int:
        """
        Number of command buffers recorded; a plan records one when it first runs.

        0 on the CPU, which has no command buffers.
        """
    @property
    def commands_submitted(self) -> int:
        """
        Number of command buffers submitted: one per run of a plan.
        """
    @property
    def microbatches(self) -> int:
        """
        Number of microbatches computed.
        """
    @property
    def nodes(self) -> dict[str, int]:
        """
        Number of graph nodes run by device, named as in `devices()`.
        """
    @property
    def plan_misses(self) -> dict[str, int]:
        """
        Number of plans built by reason, omitting reasons that did not occur.

        The reasons are "first use", "new bucket", "new adapter set", "new capture set", "new edit set",
        "reuse off" and "evicted".
        """
    @property
    def plans_built(self) -> int:
        """
        Number of plans built.
        """
    @property
    def plans_reused(self) -> int:
        """
        Number of times that an existing plan was reused.
        """
    @property
    def rows_copied(self) -> int:
        """
        Number of cache rows copied by sequence copies, shifts and defragmentation.
        """
    @property
    def seconds(self) -> dict[str, float]:
        """
        Wall time in seconds, by phase: "place", "build", "input", "compute", "output".
        """
    @property
    def tokens(self) -> int:
        """
        Number of entries in successful calls.
        """

class SamplerChain:
    """
    A chain of sampling stages with the history of each sequence.

    plait.Sampler is the public interface. A sequence is identified by any unsigned integer, its key. A
    mask has one bit per token, set if the token may be sampled. Calls release the GIL.

    Args:
        stages: Tuples of a stage's name and its parameters, in order of application.
        forced: Token ids, as in plait.Sampler.
        seed: Seed of the random numbers.

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
        Append tokens that were not sampled here to the history of a sequence.

        Args:
            key: Key of the sequence.
            tokens: Token ids.
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
        Return the rows after stages [first, last).

        Args:
            logits: float32 array of shape (n, n_vocab).
            keys: Keys of the n sequences.
            masks: uint32 array of shape (n, (n_vocab + 31) // 32), or None.
            first: Index of the first stage to apply.
            last: Index after the last stage to apply.

        Returns:
            float32 ndarray of shape (n, n_vocab), -inf for removed tokens.
        """
    def probabilities(
        self,
        logits: numpy.typing.NDArray[numpy.float32],
        keys: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        masks: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32] | None = None,
        first: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> numpy.typing.NDArray[numpy.float64]:
        """
        Return the distributions that sample() would draw from.

        Args:
            logits: float32 array of shape (n, n_vocab).
            keys: Keys of the n sequences.
            masks: uint32 array of shape (n, (n_vocab + 31) // 32), or None.
            first: Index of the first stage to apply.

        Returns:
            float64 ndarray of shape (n, n_vocab).
        """
    def reset(self, key: typing.SupportsInt | typing.SupportsIndex | None = None) -> None:
        """
        Discard the state of a sequence.

        Args:
            key: Key of the sequence. None: all sequences.
        """
    def sample(
        self,
        logits: numpy.typing.NDArray[numpy.float32],
        keys: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        masks: typing.Annotated[numpy.typing.ArrayLike, numpy.uint32] | None = None,
        first: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> numpy.typing.NDArray[numpy.int32]:
        """
        Sample one token per row and append it to the history of its sequence.

        Args:
            logits: float32 array of shape (n, n_vocab).
            keys: Keys of the n sequences, all different.
            masks: uint32 array of shape (n, (n_vocab + 31) // 32), or None.
            first: Index of the first stage to apply.

        Returns:
            int32 ndarray of shape (n,).

        Raises:
            ValueError: A row contains NaN or +inf, or no token remains. No history changes.
        """
    def start(
        self,
        key: typing.SupportsInt | typing.SupportsIndex,
        tokens: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    ) -> None:
        """
        Set the history of a sequence, none of it sampled. Its random numbers continue.

        Args:
            key: Key of the sequence.
            tokens: Token ids.
        """
    def tokens(
        self, key: typing.SupportsInt | typing.SupportsIndex
    ) -> numpy.typing.NDArray[numpy.int32]:
        """
        Return a copy of the history of a sequence.

        Args:
            key: Key of the sequence.

        Returns:
            int32 ndarray of shape (n,).
        """

def build_info() -> dict[str, typing.Any]:
    """
    Return the properties of this build of plait.

    Returns:
        A dict with the keys "version" (str), "compiler" (str), "isas" (list of str, instruction sets
        that this machine can run, in ascending order), "isas_built" (list of str, instruction sets
        compiled in), "blas" (str, the version of OpenBLAS that the instruction set "blas" uses; None if
        OpenBLAS is not installed or the build excludes it), "vulkan" (bool), "cooperative_matrices" (list
        of str, Vulkan extensions usable for matrix products: "KHR", "NV"), "architectures" (list of str,
        values of general.architecture that Model supports) and "commit" (str, or None if unknown at build
        time).
    """

def check_adapter_unchanged(adapter: Adapter) -> None:
    """
    Raise ModelError if an adapter's path leads to another file than the one that it opened.

    Args:
        adapter: The adapter.

    Raises:
        ModelError: The file was modified, replaced or removed.
    """

def check_unchanged(model: Model) -> None:
    """
    Raise ModelError if a model's path leads to other files than those that it opened.

    Args:
        model: The model.

    Raises:
        ModelError: A file was modified or replaced, or cannot be read.
    """

def choose_isa(limit: str | None) -> str:
    """
    Return the name of the instruction set that Context(isa=limit) uses.
    """

def dequantize(raw: numpy.typing.ArrayLike, type: str) -> numpy.typing.NDArray[numpy.float32]:
    """
    Convert rows from a GGUF element type to float32.

    The results have the same bits as those of ggml.

    Args:
        raw: uint8 array of shape (..., bytes); each row must consist of whole blocks.
        type: Element type, one of `types()`, in upper or lower case.

    Returns:
        float32 ndarray of shape (..., n).

    Raises:
        ValueError: The type is unknown, or the rows are not whole blocks.
        TypeError: The elements are not uint8.
    """

def devices() -> list[Device]:
    """
    Return the devices on which this build can run a context, the CPU first.
    """

def load_control_vector(path: str | os.PathLike[str]) -> numpy.typing.NDArray[numpy.float32]:
    """
    Read a control vector from a GGUF file, for use with `Context.set_control_vector`.

    Args:
        path: Path of the file.

    Returns:
        float32 ndarray of shape (n, n_embd). Row i applies to layer i: direction.i from the file, or
        zeros if the file has none.

    Raises:
        ModelError: The file cannot be read or is not a control vector.
    """

def open_image_model(path: str | os.PathLike[str], mmap: bool, projector: bool) -> Model:
    """
    Open the tower or the projector of an image encoder; see Vision.
    """

def quant_types() -> list[str]:
    """
    Return the names of the element types that dequantize() accepts, as in GGUF.

    quantize() accepts only some of them.
    """

def quantize(
    values: numpy.typing.ArrayLike,
    type: str,
    weights: numpy.typing.ArrayLike | None = None,
    *,
    search: typing.Any = False,
) -> numpy.typing.NDArray[numpy.uint8]:
    """
    Convert rows of float32 to a GGUF element type.

    Without `weights` and `search`, F16, BF16, Q8_0, Q5_1, Q5_0, Q4_1, Q4_0 and IQ4_NL have the same bits as those of
    ggml's reference quantiser. All other cases search for the codes with the least squared error.

    Args:
        values: float32 array of shape (..., n); each row must consist of whole blocks.
        type: Any of `types()`, in upper or lower case.
        weights: float32 array of shape (n,), the importance of each column: the sum of weights * error ** 2
            is minimised. An importance matrix has such weights.
        search: Search for the codes with the least squared error for every block type.

    Returns:
        uint8 ndarray of shape (..., bytes).

    Raises:
        ValueError: The type is unknown, the rows are not whole blocks, a value is NaN or infinite and
            the type is not F32, F16 or BF16, or `weights` has another shape, or negative or infinite elements.
        UnsupportedError: The type can only be read.
    """

def read_metadata(path: str | os.PathLike[str]) -> dict[str, typing.Any]:
    """
    Read the key-value pairs of a GGUF file, with or without weights.

    Args:
        path: Path of the file.

    Returns:
        The pairs as a dict, with values as in `Model.metadata`.

    Raises:
        ModelError: The file cannot be read or is not a GGUF file.
    """

def token_logprobs(
    logits: numpy.typing.NDArray[numpy.float32],
    tokens: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
) -> numpy.typing.NDArray[numpy.float64]:
    """
    Return the natural log-probability of one token per row.

    Args:
        logits: float32 array of shape (n, n_vocab).
        tokens: Token ids, shape (n,).

    Returns:
        float64 ndarray of shape (n,).

    Raises:
        ValueError: A row contains NaN or +inf, or only -inf.
        IndexError: A token is outside the vocabulary.
    """

def version() -> str:
    """
    Return the version of plait.
    """
