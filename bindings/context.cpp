#include "context.h"

#include <array>

#include "backend/cpu/isa.h"
#include "batch.h"
#include "model.h"
#include "module.h"
#include "numpy.h"
#include "output.h"
#include "signals.h"

namespace plait::python {
namespace {

thread_local CallGuard* t_innermost_call = nullptr;

constexpr int kMaxThreads = 1024;

constexpr std::array<std::pair<const char*, Pooling>, 5> kPoolings = {{
    {"none", Pooling::none},
    {"mean", Pooling::mean},
    {"cls", Pooling::cls},
    {"last", Pooling::last},
    {"rank", Pooling::rank},
}};
constexpr std::array kCacheTypes = {DType::f32,  DType::f16,  DType::bf16,
                                    DType::q8_0, DType::q5_1, DType::q5_0,
                                    DType::q4_1, DType::q4_0, DType::iq4_nl};

std::string lower(std::string text) {
    for (char& c : text)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return text;
}

std::string name_of(DType type) { return lower(std::string(info(type).name)); }

std::string name_of(Pooling pooling) {
    for (const auto& [name, value] : kPoolings)
        if (value == pooling) return name;
    throw InternalError("pooling type has no name");
}

[[noreturn]] void no_choice(const char* argument, const std::string& choices,
                            const std::string& got) {
    throw InvalidArgument(text(argument, ": expected one of ", choices, ", got \"", got, "\""));
}

DType cache_type(const char* argument, py::handle value) {
    const std::string name = to_text(argument, value);
    std::string choices;
    for (const DType type : kCacheTypes) {
        if (name_of(type) == lower(name)) return type;
        choices += (choices.empty() ? "" : ", ") + name_of(type);
    }
    no_choice(argument, choices, name);
}

std::optional<Pooling> pooling(py::handle value) {
    const std::string name = to_text("pooling", value);
    if (name == "auto") return std::nullopt;
    std::string choices = "auto";
    for (const auto& [known, pooling] : kPoolings) {
        if (name == known) return pooling;
        choices += text(", ", known);
    }
    no_choice("pooling", choices, name);
}

std::optional<std::string> instruction_set(py::handle value) {
    if (value.is_none()) return std::nullopt;
    std::string name = to_text("isa", value);
    if (!cpu::isa_from_name(name)) no_choice("isa", cpu::isa_names(), name);
    return name;
}

std::optional<bool> flag_or_auto(const char* argument, py::handle value) {
    if (!PyUnicode_Check(value.ptr())) return to_bool(argument, value);
    const auto name = to_text(argument, value);
    if (name == "auto") return std::nullopt;
    throw InvalidArgument(text(argument, ": expected True, False or \"auto\", got \"", name, "\""));
}

std::optional<int64_t> optional_size(const char* argument, py::handle value) {
    if (value.is_none()) return std::nullopt;
    return to_int64(argument, value);
}

std::vector<double> shares(py::handle split) {
    std::vector<double> result;
    if (split.is_none()) return result;
    if (!py::isinstance<py::iterable>(split) || PyUnicode_Check(split.ptr()))
        wrong_type("split", "an iterable of numbers, one per device", split);
    for (const py::handle share : split) result.push_back(to_double("split", share));
    if (result.empty()) throw InvalidArgument("split: expected a share for each device, got none");
    return result;
}

std::optional<ContextOptions::Range> layer_range(py::handle layers) {
    if (layers.is_none()) return std::nullopt;
    if (!PyRange_Check(layers.ptr())) wrong_type("layers", "a range, such as range(0, 12)", layers);
    const auto part = [&](const char* name) {
        return to_int64("layers", py::object(layers.attr(name)));
    };
    if (part("step") != 1)
        throw InvalidArgument(text("layers: expected a range of step 1, got ", short_repr(layers)));
    return ContextOptions::Range{part("start"), part("stop")};
}

using NodeByField = py::typing::Dict<py::str, py::object>;

py::typing::List<NodeByField> graph_nodes(const PyContext& self, const Integer& n_tokens,
                                          const Integer& n_seqs, const Integer& n_outputs,
                                          const Flag& embeddings, const Flag& encode) {
    const int64_t tokens = to_int64("n_tokens", n_tokens);
    const int64_t sequences = to_int64("n_seqs", n_seqs);
    const int64_t outputs = to_int64("n_outputs", n_outputs);
    const bool as_embeddings = to_bool("embeddings", embeddings);
    const bool of_encoder = to_bool("encode", encode);
    const std::vector<NodeInfo> nodes = self.session(
        [&](Session& s) { return s.graph(tokens, sequences, outputs, as_embeddings, of_encoder); });
    py::list result;
    for (const NodeInfo& node : nodes) {
        py::list shape, inputs, fused;
        for (const NodeId input : node.inputs) inputs.append(input);
        for (const std::string& part : node.fused) fused.append(part);
        for (int axis = 0; axis < node.type.shape.rank; ++axis) shape.append(node.type.shape[axis]);
        py::dict one;
        one["op"] = node.op;
        one["name"] = node.name;
        one["layer"] = node.layer;
        one["dtype"] = std::string(info(node.type.dtype).name);
        one["shape"] = py::tuple(shape);
        one["counts"] = node.counts;
        one["nbytes"] = node.bytes;
        one["stage"] = node.stage;
        one["inputs"] = inputs;
        one["fused"] = fused;
        one["writes_cache"] = node.writes_cache;
        one["output"] = node.output;
        one["device"] = node.device;
        result.append(one);
    }
    return result;
}

PyContext make_context(const ModelObject& model, const OptionalInteger& n_ctx,
                       const Integer& n_seq_max, const Text& kv, const OptionalInteger& kv_cells,
                       const Text& type_k, const Text& type_v, const Integer& n_batch,
                       const Integer& n_ubatch, const Text& backend,
                       const OptionalInteger& n_gpu_layers, const OptionalReals& split,
                       const OptionalRange& layers, const OptionalInteger& threads,
                       const OptionalText& isa, const FlagOrAuto& flash_attention,
                       const Flag& embeddings, const Text& pooling_name, const OptionalFlag& causal,
                       const Flag& graph_reuse, const Flag& fuse, const Flag& invariant,
                       const Flag& swa_full, const OptionalReal& defrag_threshold) {
    if (!py::isinstance<PyModel>(model)) wrong_type("model", "a Model", model);
    ContextOptions options;
    options.n_ctx = optional_size("n_ctx", n_ctx);
    options.n_seq_max = to_int32("n_seq_max", n_seq_max);
    options.kv = to_text("kv", kv);
    options.kv_cells = optional_size("kv_cells", kv_cells);
    options.type_k = cache_type("type_k", type_k);
    options.type_v = cache_type("type_v", type_v);
    options.n_batch = to_int32("n_batch", n_batch);
    options.n_ubatch = to_int32("n_ubatch", n_ubatch);
    options.backend = to_text("backend", backend);
    options.layers = {optional_size("n_gpu_layers", n_gpu_layers), shares(split)};
    options.layer_range = layer_range(layers);
    if (!threads.is_none())
        options.threads = static_cast<int>(to_int_between("threads", threads, 1, kMaxThreads));
    options.isa = instruction_set(isa);
    options.flash_attention = flag_or_auto("flash_attention", flash_attention);
    options.embeddings = to_bool("embeddings", embeddings);
    options.pooling = pooling(pooling_name);
    if (!causal.is_none()) options.causal = to_bool("causal", causal);
    options.graph_reuse = to_bool("graph_reuse", graph_reuse);
    options.fuse = to_bool("fuse", fuse);
    options.invariant = to_bool("invariant", invariant);
    options.swa_full = to_bool("swa_full", swa_full);
    options.defrag_threshold.reset();
    if (!defrag_threshold.is_none())
        options.defrag_threshold = to_double("defrag_threshold", defrag_threshold);

    follow_log_level();
    std::shared_ptr<const LoadedModel> loaded = initialized(py::cast<const PyModel&>(model).loaded);
    std::shared_ptr<SharedContext> shared;
    {
        const GilRelease released;
        call_interruptibly([&] { shared = std::make_shared<SharedContext>(loaded, options); });
    }
    return {{{}, std::move(shared)}, model};
}

py::object weak_reference(const py::object& model) {
    // Instances of the base class _core.Model do not support weak references.
    if (!model || !PyType_SUPPORTS_WEAKREFS(Py_TYPE(model.ptr()))) return py::none();
    return py::weakref(model);
}

using Run = Outputs (Session::*)(const BatchView&, StopSignal*);

// Creates the Output first, because nothing may fail after the cache has changed.
OutputObject run(const PyContext& self, PyBatch& batch, Run function) {
    const ModelInfo& info = initialized(self.shared)->fixed().model()->info();
    // encode() of a decoder does not use the cache.
    const bool changes = function == &Session::decode || info.has_encoder;
    const Access access = changes ? Access::change : Access::read;
    follow_log_level();
    const ArgumentReading reading(batch);
    PythonSignals signals;
    try {
        py::object output =
            py::cast(PyOutput{{}, reading->view().size, weak_reference(self.model)});
        py::cast<PyOutput&>(output).outputs =
            initialized(self.shared)
                ->call_with_handles([&](Context& context, const Handles& handles) {
                    reading->check_sequences(handles, access);
                    return ((*context.session().lock()).*function)(reading->view(), &signals);
                });
        return output;
    } catch (const Interrupted&) {
        signals.rethrow();
    }
}

std::vector<std::string> devices_of(const PyContext& self) {
    return self.call([](const Context& context) { return context.devices(); });
}

py::str context_repr(const PyContext& self) {
    const bool closed = self.call([](const Context& context) { return context.closed(); });
    if (closed) return py::str("<plait.Context, closed>");
    const Context& context = initialized(self.shared)->fixed();
    const auto [kind, used, cells] = self.session([](Session& s) {
        return std::tuple(std::string(s.memory().kind()), s.memory().n_used(),
                          s.memory().n_cells());
    });
    std::string devices;
    for (const std::string& name : devices_of(self))
        devices += text(devices.empty() ? "" : " + ", name);
    return text("<plait.Context of ", context.model()->info().arch, " on ", devices, ": ", kind,
                ", n_ctx=", context.settings().n_ctx(),
                ", n_seq_max=", context.settings().n_seq_max(), ", ", used, " of ", cells,
                " cells used>");
}

constexpr const char* kContextDoc =
    R"(Runs a model on batches and stores the KV cache of its sequences.

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

Source: cpp/runtime/context.cpp)";

constexpr const char* kDecodeDoc = R"(Run a batch and store its keys and values in the cache.

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

Source: cpp/runtime/step/step_runner.cpp)";

constexpr const char* kEncodeDoc =
    R"(Run the encoder and store its output for the sequences of the batch.

For other models, computes what decode() would on an empty cache, and changes nothing. Every sequence
of the batch starts anew, at any position.

Args:
    batch: The batch.

Returns:
    An Output with one row for each entry that requested one, in batch order.

Raises:
    BatchError: The batch is invalid; other errors are those of decode().)";

constexpr const char* kGraphNodesDoc =
    R"(Return the nodes of the plan for a step of the given size; used by `graph`.

Args:
    n_tokens: Number of tokens.
    n_seqs: Number of sequences.
    n_outputs: Number of output rows.
    embeddings: The entries are embeddings instead of token ids.
    encode: The step is one of encode() instead of decode().

Returns:
    One dict per node.

Raises:
    ValueError: This context cannot run such a step.)";

}  // namespace

bool CallGuard::is_in_call_of(const Context& context) noexcept {
    const CallGuard* call = t_innermost_call;
    while (call != nullptr && call->context_ != &context) call = call->outer_;
    return call != nullptr;
}

CallGuard* CallGuard::outermost() noexcept {
    CallGuard* call = t_innermost_call;
    while (call != nullptr && call->outer_ != nullptr) call = call->outer_;
    return call;
}

CallGuard::CallGuard(const Context& context) : context_(&context), outer_(t_innermost_call) {
    if (is_in_call_of(context))
        throw InvalidArgument(
            "the context is busy: an edit function, a signal handler or a log handler must not "
            "call the context in whose call it runs");
    t_innermost_call = this;
}

CallGuard::~CallGuard() {
    t_innermost_call = outer_;
    if (deferred_.empty()) return;
    const py::error_scope kept;
    for (const std::function<void()>& close : deferred_) {
        try {
            close();
        } catch (...) {
        }
    }
}

namespace {

using ContextClass = py::class_<PyContext>;

void bind_init(ContextClass& context) {
    context.def("__init__", init(&make_context), py::detail::is_new_style_constructor(),
                py::arg("model"), py::kw_only(), py::arg("n_ctx") = py::none(),
                py::arg("n_seq_max") = 1, py::arg("kv") = "auto", py::arg("kv_cells") = py::none(),
                py::arg("type_k") = "f16", py::arg("type_v") = "f16", py::arg("n_batch") = 2048,
                py::arg("n_ubatch") = 512, py::arg("backend") = "cpu",
                py::arg("n_gpu_layers") = py::none(), py::arg("split") = py::none(),
                py::arg("layers") = py::none(), py::arg("threads") = py::none(),
                py::arg("isa") = py::none(), py::arg("flash_attention") = "auto",
                py::arg("embeddings") = false, py::arg("pooling") = "auto",
                py::arg("causal") = py::none(), py::arg("graph_reuse") = true,
                py::arg("fuse") = true, py::arg("invariant") = true, py::arg("swa_full") = false,
                py::arg("defrag_threshold") = 0.5);
}

void bind_runs(ContextClass& context) {
    context
        .def(
            "decode",
            [](const PyContext& self, PyBatch& batch) {
                return run(self, batch, &Session::decode);
            },
            py::arg("batch"), kDecodeDoc)
        .def(
            "encode",
            [](const PyContext& self, PyBatch& batch) {
                return run(self, batch, &Session::encode);
            },
            py::arg("batch"), kEncodeDoc);
}

void bind_options(ContextClass& context) {
    const auto fixed = [](auto get) {
        return [get](const PyContext& self) {
            return get(initialized(self.shared)->fixed().settings());
        };
    };
    context
        .def_property_readonly(
            "model", [](const PyContext& self) -> ModelObject { return initialized(self.model); },
            "The Model that the context runs.")
        .def_property_readonly("n_ctx", fixed([](const ContextSettings& s) { return s.n_ctx(); }),
                               "Max cells per sequence.")
        .def_property_readonly("n_seq_max",
                               fixed([](const ContextSettings& s) { return s.n_seq_max(); }),
                               "Max number of sequences.")
        .def_property_readonly("n_batch",
                               fixed([](const ContextSettings& s) { return s.n_batch(); }),
                               "Max entries per call.")
        .def_property_readonly("n_ubatch",
                               fixed([](const ContextSettings& s) { return s.n_ubatch(); }),
                               "Max tokens computed at once.")
        .def_property_readonly("layers", fixed([](const ContextSettings& s) -> Range {
                                   const auto type =
                                       py::handle(reinterpret_cast<PyObject*>(&PyRange_Type));
                                   return type(s.layer_range.begin, s.layer_range.end);
                               }),
                               "The layers that the context runs, as a range.")
        .def_property_readonly(
            "type_k", fixed([](const ContextSettings& s) { return name_of(s.memory.keys); }),
            "Element type of cached keys.")
        .def_property_readonly(
            "type_v", fixed([](const ContextSettings& s) { return name_of(s.memory.values); }),
            "Element type of cached values.")
        .def_property_readonly(
            "pooling", fixed([](const ContextSettings& s) { return name_of(s.pooling); }),
            "Pooling of token embeddings: \"none\", \"mean\", \"cls\", \"last\" or \"rank\".")
        .def_property_readonly("causal",
                               fixed([](const ContextSettings& s) { return s.memory.causal; }),
                               "True if a token attends only to earlier tokens.")
        .def_property_readonly("flash_attention",
                               fixed([](const ContextSettings& s) { return s.flash_attention; }),
                               "True if attention is computed in one pass over the keys.")
        .def_property_readonly("graph_reuse",
                               fixed([](const ContextSettings& s) { return s.graph_reuse; }),
                               "True if plans are kept for later steps.")
        .def_property_readonly("fuse", fixed([](const ContextSettings& s) { return s.fuse; }),
                               "True if operations are fused where that is cheaper.")
        .def_property_readonly(
            "invariant",
            [](const PyContext& self) { return initialized(self.shared)->fixed().invariant(); },
            "True if logits are bitwise independent of the rest of the batch.");
}

void bind_state(ContextClass& context) {
    context
        .def_property_readonly(
            "compute_bytes",
            [](const PyContext& self) {
                return self.session([](Session& s) { return s.compute_bytes(); });
            },
            R"(Size in bytes of the buffers for inputs and intermediate values.

Construction allocates enough for the largest step of decode().)")
        .def_property_readonly(
            "devices",
            [](const PyContext& self) -> py::typing::List<py::str> {
                py::list names;
                for (const std::string& name : devices_of(self)) names.append(py::str(name));
                return names;
            },
            R"(Names of the devices in use, as in `devices()`; the CPU comes last.

A device listed twice in `backend` appears as "vulkan:0" and "vulkan:0/2".)")
        .def_property_readonly(
            "closed",
            [](const PyContext& self) {
                return self.call([](const Context& c) { return c.closed(); });
            },
            "True if close() was called.")
        .def(
            "close", [](const PyContext& self) { self.call([](Context& c) { c.close(); }); },
            R"(Free the cache and the plans. Outputs and statistics stay valid.

Does nothing if the context is closed.)");
}

void bind_graph(ContextClass& context) {
    context
        .def("graph_nodes", &graph_nodes, py::arg("n_tokens"), py::arg("n_seqs"),
             py::arg("n_outputs"), py::arg("embeddings") = false, py::arg("encode") = false,
             kGraphNodesDoc)
        .def(
            "value_names",
            [](const PyContext& self) -> py::typing::List<py::str> {
                py::list names;
                for (const std::string& name :
                     self.session([](Session& s) { return s.value_names(); }))
                    names.append(py::str(name));
                return names;
            },
            R"(Return the names of the intermediate values that `capture` can record.)");
}

}  // namespace

void bind_context(py::module_& m) {
    ContextClass context(m, "Context", kContextDoc);
    context.def("__repr__", &context_repr);
    bind_init(context);
    bind_runs(context);
    bind_options(context);
    bind_state(context);
    bind_graph(context);
    bind_steering(context);
    bind_scopes(m);
    bind_transaction(m);
}

}  // namespace plait::python
