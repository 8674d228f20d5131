#include "context.h"

#include <array>

#include "backend/cpu/isa.h"
#include "batch.h"
#include "log.h"
#include "model.h"
#include "numpy.h"
#include "output.h"
#include "signals.h"

namespace plait::python {
namespace {

thread_local Inside* t_innermost = nullptr;

constexpr int kMostThreads = 1024;

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
    throw InternalError("a pooling without a name");
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
        wrong_type("split", "numbers, one for each device", split);
    for (const py::handle share : split) result.push_back(to_double("split", share));
    if (result.empty()) throw InvalidArgument("split: expected a share for each device, got none");
    return result;
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
    const std::vector<NodeInfo> nodes = self.call(
        [&](Context& c) { return c.graph(tokens, sequences, outputs, as_embeddings, of_encoder); });
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
                       const OptionalInteger& threads, const OptionalText& isa,
                       const FlagOrAuto& flash_attention, const Flag& embeddings,
                       const Text& pooling_name, const OptionalFlag& causal,
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
    if (!threads.is_none())
        options.threads = static_cast<int>(to_int_between("threads", threads, 1, kMostThreads));
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
    std::shared_ptr<const LoadedModel> loaded = made(py::cast<const PyModel&>(model).loaded);
    std::shared_ptr<SharedContext> shared;
    {
        const Unlocked unlocked;
        shared = std::make_shared<SharedContext>(std::move(loaded), options);
    }
    return {{}, std::move(shared), model};
}

py::object weak(const py::object& model) {
    // A plain _core.Model, which users do not meet, can have none.
    if (!model || !PyType_SUPPORTS_WEAKREFS(Py_TYPE(model.ptr()))) return py::none();
    return py::weakref(model);
}

using Run = Outputs (Context::*)(const BatchView&, StopSignal*);

// The object comes first: once the tokens are remembered nothing may fail.
OutputObject run(const PyContext& self, PyBatch& batch, Run function) {
    follow_log_level();
    const PyBatch::Reading reading(batch);
    PythonSignals signals;
    try {
        py::object output = py::cast(PyOutput{{}, reading.view().size, weak(self.model)});
        py::cast<PyOutput&>(output).outputs = self.call(
            [&](Context& context) { return (context.*function)(reading.view(), &signals); });
        return output;
    } catch (const Interrupted&) {
        signals.rethrow();
    }
}

py::str context_repr(const PyContext& self) {
    const bool closed = self.call([](const Context& context) { return context.closed(); });
    if (closed) return py::str("<plait.Context, closed>");
    const Context& context = made(self.shared)->fixed();
    const auto [kind, used, cells] = self.call(
        [](const Context& c) { return std::tuple(c.memory_kind(), c.n_used(), c.n_cells()); });
    std::string devices;
    for (const std::string& name : made(self.shared)->devices())
        devices += text(devices.empty() ? "" : " + ", name);
    return text("<plait.Context of ", context.model()->info().arch, " on ", devices, ": ", kind,
                ", n_ctx=", context.n_ctx(), ", n_seq_max=", context.options().n_seq_max, ", ",
                used, " of ", cells, " cells used>");
}

constexpr const char* kContextDoc =
    R"(A conversation with a model: what it remembers, and the plans that compute it.

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

Source: cpp/runtime/context.cpp)";

constexpr const char* kDecodeDoc = R"(Run a batch and remember its keys and values.

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

Source: cpp/runtime/step/step_runner.cpp)";

}  // namespace

Inside::Inside(const Context& context) : context_(&context), outer_(t_innermost) {
    for (const Inside* i = outer_; i != nullptr; i = i->outer_)
        if (i->context_ == context_)
            throw InvalidArgument(
                "the context is busy: a signal handler or log handler called it from inside its "
                "own call");
    t_innermost = this;
}

Inside::~Inside() { t_innermost = outer_; }

Stats SharedContext::stats() {
    if (last_stats_) return *last_stats_;
    return call([](const Context& context) { return context.stats(); });
}

std::vector<std::string> SharedContext::devices() {
    const auto now = call([](const Context& context) -> std::optional<std::vector<std::string>> {
        if (context.closed()) return std::nullopt;
        return context.devices();
    });
    if (now) devices_ = *now;
    return devices_;
}

void SharedContext::reset_stats() {
    if (last_stats_) last_stats_ = Stats{};
    call([](Context& context) { context.reset_stats(); });
}

void SharedContext::close() {
    devices();
    const auto last = call([](Context& context) -> std::optional<Stats> {
        if (context.closed()) return std::nullopt;
        const Stats stats = context.stats();
        context.close();
        return stats;
    });
    if (last) last_stats_ = last;
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
                py::arg("threads") = py::none(), py::arg("isa") = py::none(),
                py::arg("flash_attention") = "auto", py::arg("embeddings") = false,
                py::arg("pooling") = "auto", py::arg("causal") = py::none(),
                py::arg("graph_reuse") = true, py::arg("fuse") = true, py::arg("invariant") = true,
                py::arg("swa_full") = false, py::arg("defrag_threshold") = 0.5);
}

void bind_runs(ContextClass& context) {
    context
        .def(
            "decode",
            [](const PyContext& self, PyBatch& batch) {
                return run(self, batch, &Context::decode);
            },
            py::arg("batch"), kDecodeDoc)
        .def(
            "encode",
            [](const PyContext& self, PyBatch& batch) {
                return run(self, batch, &Context::encode);
            },
            py::arg("batch"), R"(Run a batch without a past and without remembering anything.

The same computation as decode() on an empty cache. Every sequence of the batch starts anew, at any
position. Arguments, result and errors are those of decode().)");
}

void bind_options(ContextClass& context) {
    const auto fixed = [](auto get) {
        return [get](const PyContext& self) { return get(made(self.shared)->fixed()); };
    };
    const auto option = [](auto member) {
        return [member](const PyContext& self) {
            return made(self.shared)->fixed().options().*member;
        };
    };
    context
        .def_property_readonly(
            "model", [](const PyContext& self) -> ModelObject { return made(self.model); },
            "The Model.")
        .def_property_readonly("n_ctx", fixed([](const Context& c) { return c.n_ctx(); }),
                               "Cells that one sequence can hold.")
        .def_property_readonly("n_seq_max", option(&ContextOptions::n_seq_max),
                               "Sequences that may live at once.")
        .def_property_readonly("n_batch", option(&ContextOptions::n_batch),
                               "Most entries of one call.")
        .def_property_readonly("n_ubatch", option(&ContextOptions::n_ubatch),
                               "Most tokens computed at once.")
        .def_property_readonly("type_k",
                               fixed([](const Context& c) { return name_of(c.options().type_k); }),
                               "Element type of cached keys.")
        .def_property_readonly("type_v",
                               fixed([](const Context& c) { return name_of(c.options().type_v); }),
                               "Element type of cached values.")
        .def_property_readonly(
            "pooling", fixed([](const Context& c) { return name_of(c.pooling()); }),
            "How token embeddings become one: \"none\", \"mean\", \"cls\", \"last\" or \"rank\".")
        .def_property_readonly("causal",
                               fixed([](const Context& c) { return *c.options().causal; }),
                               "Whether a token sees only those before it.")
        .def_property_readonly("flash_attention",
                               fixed([](const Context& c) { return *c.options().flash_attention; }),
                               "Whether attention is computed in one pass over the keys.")
        .def_property_readonly("graph_reuse", option(&ContextOptions::graph_reuse),
                               "Whether plans are kept for later steps.")
        .def_property_readonly("fuse", option(&ContextOptions::fuse),
                               "Whether operations that cost less together run as one.")
        .def_property_readonly("invariant", fixed([](const Context& c) { return c.invariant(); }),
                               "Whether logits are the same bits whatever else is in the batch.");
}

void bind_state(ContextClass& context) {
    context
        .def_property_readonly(
            "compute_bytes",
            [](const PyContext& self) {
                return self.call([](const Context& c) { return c.compute_bytes(); });
            },
            "Bytes for the inputs and the intermediate values of a step. Creation takes what the "
            "largest step of decode() needs.")
        .def_property_readonly(
            "devices",
            [](const PyContext& self) -> py::typing::List<py::str> {
                py::list names;
                for (const std::string& name : made(self.shared)->devices())
                    names.append(py::str(name));
                return names;
            },
            "Names of the devices that compute something, as in `devices()`; the CPU comes last. "
            "A device named twice is \"vulkan:0\" and \"vulkan:0/2\".")
        .def_property_readonly(
            "closed",
            [](const PyContext& self) {
                return self.call([](const Context& c) { return c.closed(); });
            },
            "Whether close() was called.")
        .def(
            "close", [](const PyContext& self) { made(self.shared)->close(); },
            "Free the cache and the plans. Outputs and statistics stay. Harmless when closed "
            "already.");
}

void bind_graph(ContextClass& context) {
    context
        .def("graph_nodes", &graph_nodes, py::arg("n_tokens"), py::arg("n_seqs"),
             py::arg("n_outputs"), py::arg("embeddings") = false, py::arg("encode") = false,
             R"(The nodes of the plan of such a step, each as a dict; see `graph`.

Raises ValueError for a step that this context cannot be asked for.)")
        .def(
            "value_names",
            [](const PyContext& self) -> py::typing::List<py::str> {
                py::list names;
                for (const std::string& name :
                     self.call([](Context& c) { return c.value_names(); }))
                    names.append(py::str(name));
                return names;
            },
            "Names of the values between input and output that `capture` can record.");
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
    bind_scopes(m, context);
}

}  // namespace plait::python
