// A Python module for tests: builds a graph of a few ops from arrays and runs it on a device, the way that plans
// run the graphs of models. tests/python/ops compares the results with the formulas in tests/reference.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/backend.h"
#include "cpp/support/random_weights.h"
#include "gradient/gradient.h"
#include "graph/ops.h"
#include "ops/recorded_step.h"
#include "plan/plan.h"
#include "runtime/devices/backend_registry.h"

namespace py = pybind11;

namespace plait {
namespace {

using Bytes = py::array_t<uint8_t, py::array::c_style | py::array::forcecast>;

DType dtype_of(const std::string& name) {
    const std::optional<DType> dtype = dtype_from_name(name);
    if (!dtype) throw std::invalid_argument("unknown element type " + name);
    return *dtype;
}

std::span<const std::byte> bytes_of(const py::array& array) {
    return {static_cast<const std::byte*>(array.data()), static_cast<size_t>(array.nbytes())};
}

Shape shape_of(const std::vector<int64_t>& axes) {
    if (axes.empty() || axes.size() > Shape::kMaxRank)
        throw std::invalid_argument("arrays have 1 to 4 axes");
    Shape shape;
    for (const int64_t size : axes) shape.dims[shape.rank++] = size;
    return shape;
}

std::vector<int64_t> axes_of(const Shape& shape) {
    return {shape.dims.begin(), shape.dims.begin() + shape.rank};
}

// A device that graphs run on: "cpu", or the name of a registered backend for its first device.
class Device {
public:
    Device(const std::string& name, const std::string& isa, int threads)
        : devices_(make(name, isa, threads)) {}
    DeviceSet& devices() { return devices_; }

private:
    static std::unique_ptr<Backend> make(const std::string& name, const std::string& isa,
                                         int threads) {
        if (name == "cpu")
            return std::make_unique<cpu::CpuBackend>(
                cpu::CpuOptions{.threads = threads, .isa = isa});
        for (const BackendKind& kind : backend_kinds())
            if (kind.name == name) return kind.make(0);
        throw std::invalid_argument("this build has no backend " + name);
    }

    DeviceSet devices_;
};

// A graph with its inputs, weights and caches. `room`: rows that the plan has beyond those of the step.
class OpGraph {
public:
    OpGraph(int tokens, int outputs, int sequences, int moves, int room)
        : counts_{.tokens = tokens, .outputs = outputs, .sequences = sequences, .moves = moves},
          room_(room) {}

    // An input of i32 or f32. The group tells inputs apart; kernels do not read the field.
    Value input(const py::array& array, Extent extent) {
        const bool is_float = py::isinstance<py::array_t<float>>(array);
        if (!is_float && !py::isinstance<py::array_t<int32_t>>(array))
            throw std::invalid_argument("inputs are float32 or int32");
        std::vector<int64_t> axes(array.shape(), array.shape() + array.ndim());
        if (extent != Extent::fixed) axes[0] += room_;
        const TensorType type{is_float ? DType::f32 : DType::i32, shape_of(axes)};
        const InputId id{InputField::embeddings, static_cast<uint16_t>(inputs_.size())};
        std::vector<std::byte> bytes(type.bytes(), std::byte{0xff});
        const auto given = bytes_of(array);
        std::memcpy(bytes.data(), given.data(), given.size());
        layout_.add(id, bytes.size());
        inputs_.emplace_back(id, std::move(bytes));
        return graph_.input(id, type, extent);
    }
    Value weight(const Bytes& bytes, const std::string& dtype, const std::vector<int64_t>& axes) {
        const TensorType type{dtype_of(dtype), shape_of(axes)};
        const WeightId id = weights_->add(type);
        const auto given = bytes_of(bytes);
        if (given.size() != type.bytes()) throw std::invalid_argument("bytes do not fit the shape");
        weights_->bytes(id).assign(given.begin(), given.end());
        return graph_.weight({id, type});
    }
    Value cache(const Bytes& bytes, const std::string& dtype, const std::vector<int64_t>& axes) {
        const TensorType type{dtype_of(dtype), shape_of(axes)};
        const auto given = bytes_of(bytes);
        if (given.size() != type.bytes()) throw std::invalid_argument("bytes do not fit the shape");
        caches_.emplace_back(type, std::vector<std::byte>(given.begin(), given.end()));
        return graph_.storage(static_cast<uint32_t>(caches_.size() - 1), type);
    }

    // The rows of `result` that the step has, as f32 bits, and the bytes of every cache after the run.
    std::pair<py::array_t<float>, std::vector<Bytes>> run(Device& device, const Value* result,
                                                          bool fuse) {
        DeviceSet& devices = device.devices();
        std::vector<std::unique_ptr<Buffer>> storage;
        std::vector<Buffer*> pointers;
        for (const auto& [type, bytes] : caches_) {
            storage.push_back(devices[0].allocate(type.bytes()));
            storage.back()->write(0, bytes);
            pointers.push_back(storage.back().get());
        }
        const WeightStores stores({devices[0].make_weight_store(weights_)});
        const std::vector<size_t> storage_devices(pointers.size());
        Graph graph = graph_;
        std::vector<py::ssize_t> axes{0};
        if (result) {
            graph.output(OutputId::logits, Value{&graph, result->id});
            const std::vector<int64_t> shape = axes_of(result->shape());
            axes.assign(shape.begin(), shape.end());
            if (result->extent() != Extent::fixed)
                axes[0] = result->extent() == Extent::outputs ? counts_.outputs : counts_.tokens;
        }
        py::array_t<float> values(axes);
        const DeviceBuffers inputs = devices.allocate_inputs(layout_.bytes());
        for (const auto& [id, bytes] : inputs_) inputs.on(0).write(layout_.offset(id), bytes);
        DeviceBuffers arenas;
        // Destroyed before the buffers: waits for threads that still compute what another took over.
        Plan plan(std::move(graph), {devices, layout_, stores, pointers, storage_devices, fuse});
        devices.grow(arenas, plan.arena_bytes());
        PlanArguments arguments{.arenas = arenas, .inputs = inputs, .counts = counts_};
        arguments.outputs[0] = reinterpret_cast<std::byte*>(values.mutable_data());
        plan.run(arguments);
        std::vector<Bytes> caches;
        for (const auto& buffer : storage) {
            Bytes& bytes = caches.emplace_back(static_cast<py::ssize_t>(buffer->bytes()));
            buffer->read(0, std::span(reinterpret_cast<std::byte*>(bytes.mutable_data()),
                                      static_cast<size_t>(bytes.nbytes())));
        }
        return {values, caches};
    }

    // The gradients of these values, given the gradient of the result, [rows, ...].
    std::vector<py::array_t<float>> gradient(
        Device& device, const Value& result, const std::vector<Value>& wanted,
        const py::array_t<float, py::array::c_style>& of_result) {
        std::vector<NodeId> nodes;
        for (const Value& value : wanted) nodes.push_back(value.id);
        const GradientPlan plan = make_gradient_plan(graph_, result.id, nodes, "of a test");
        test::RecordedStep step;
        step.counts = counts_;
        step.inputs = &inputs_;
        step.weights = weights_;
        for (const NodeId node : plan.kept) {
            const Value value{&graph_, node};
            const auto rows = run(device, &value, true).first;
            step.values[node].assign(rows.data(), rows.data() + rows.size());
        }
        const std::vector<Bytes> caches = run(device, &result, true).second;
        for (size_t i = 0; i < caches.size(); ++i) {
            const auto bytes = bytes_of(caches[i]);
            step.caches.emplace_back(caches_[i].first, test::Bytes(bytes.begin(), bytes.end()));
        }
        std::vector<py::array_t<float>> gradients;
        for (const std::vector<float>& rows : run_gradient(
                 graph_, plan, step, {of_result.data(), of_result.data() + of_result.size()}))
            gradients.emplace_back(static_cast<py::ssize_t>(rows.size()), rows.data());
        return gradients;
    }

private:
    Graph graph_;
    Counts counts_;
    int room_;
    std::shared_ptr<test::RandomWeights> weights_ = std::make_shared<test::RandomWeights>();
    std::vector<std::pair<TensorType, std::vector<std::byte>>> caches_;
    std::vector<std::pair<InputId, std::vector<std::byte>>> inputs_;
    InputLayout layout_;
};

Value optional(const Value* value) { return value ? *value : Value{}; }

void bind_graphs(py::module_& m) {
    py::class_<Value>(m, "Value").def_property_readonly("shape", [](const Value& value) {
        return axes_of(value.shape());
    });
    py::enum_<Extent>(m, "Extent")
        .value("fixed", Extent::fixed)
        .value("tokens", Extent::tokens)
        .value("outputs", Extent::outputs)
        .value("moves", Extent::moves);
    py::class_<Device>(m, "Device")
        .def(py::init<const std::string&, const std::string&, int>(), py::arg("name"),
             py::arg("isa"), py::arg("threads"));
    py::class_<OpGraph>(m, "Graph")
        .def(py::init<int, int, int, int, int>(), py::arg("tokens"), py::arg("outputs"),
             py::arg("sequences"), py::arg("moves"), py::arg("room"))
        .def("input", &OpGraph::input, py::keep_alive<0, 1>())
        .def("weight", &OpGraph::weight, py::keep_alive<0, 1>())
        .def("cache", &OpGraph::cache, py::keep_alive<0, 1>())
        .def("run", &OpGraph::run, py::arg("device"), py::arg("result").none(true), py::arg("fuse"))
        .def("gradient", &OpGraph::gradient, py::arg("device"), py::arg("result"),
             py::arg("wanted"), py::arg("of_result"));
}

void bind_rows(py::module_& m) {
    m.def("reshape",
          [](Value x, const std::vector<int64_t>& axes) { return reshape(x, shape_of(axes)); });
    m.def("embed", &embed);
    m.def("select_rows", [](Value x, Value rows) { return select_rows(x, rows); });
    m.def("store_rows", &store_rows);
    m.def("copy_rows", &copy_rows);
    m.def("edit_rows", &edit_rows);
    m.def("rms_norm", [](Value x, const Value* weight, float epsilon) {
        return rms_norm(x, optional(weight), epsilon);
    });
    m.def("layer_norm", [](Value x, const Value* weight, const Value* bias, float epsilon) {
        return layer_norm(x, optional(weight), optional(bias), epsilon);
    });
    m.def("l2_norm", &l2_norm);
    m.def("row_sum", &row_sum);
}

void bind_products(py::module_& m) {
    m.def("linear", [](Value x, Value weight, const Value* bias) {
        return linear(x, weight, optional(bias));
    });
    m.def("head_linear", &head_linear);
    m.def("mix", &mix);
    m.def("route", [](Value logits, int n_used, bool renormalize, float scale, int gating,
                      const Value* bias, int n_groups, int n_groups_used, int group_best) {
        return route(logits,
                     {.n_used = n_used,
                      .renormalize = renormalize,
                      .scale = scale,
                      .gating = static_cast<Gating>(gating),
                      .n_groups = n_groups,
                      .n_groups_used = n_groups_used,
                      .group_best = group_best},
                     optional(bias));
    });
    m.def("expert_linear", [](Value x, Value weight, Value routes, const Value* bias) {
        return expert_linear(x, weight, routes, optional(bias));
    });
    m.def("combine", &combine);
}

void bind_elementwise(py::module_& m) {
    m.def("add", [](Value a, Value b) { return a + b; });
    m.def("sub", [](Value a, Value b) { return a - b; });
    m.def("mul", [](Value a, Value b) { return a * b; });
    m.def("scale", &scale);
    m.def("softcap", &softcap);
    m.def("clamp", &clamp);
    m.def("activate", [](Value x, int how) { return activate(x, static_cast<Activation>(how)); });
    m.def("gate",
          [](Value g, Value up, int how) { return gate(g, up, static_cast<Activation>(how)); });
    m.def("clamped_swiglu", &clamped_swiglu);
    m.def("slice", &slice);
    m.def("concat", &concat);
}

void bind_attention(py::module_& m) {
    py::class_<Rope>(m, "Rope")
        .def(py::init<>())
        .def_readwrite("n_rot", &Rope::n_rot)
        .def_readwrite("base", &Rope::base)
        .def_readwrite("scale", &Rope::scale)
        .def_readwrite("interleaved", &Rope::interleaved)
        .def_readwrite("extrapolation", &Rope::extrapolation)
        .def_readwrite("magnitude", &Rope::magnitude)
        .def_readwrite("beta_fast", &Rope::beta_fast)
        .def_readwrite("beta_slow", &Rope::beta_slow)
        .def_readwrite("n_ctx_original", &Rope::n_ctx_original)
        .def_property(
            "sections", [](const Rope& rope) { return std::to_array(rope.sections); },
            [](Rope& rope, const std::array<int, 4>& pairs) {
                std::copy(pairs.begin(), pairs.end(), rope.sections);
            });
    m.def("rope_table", [](Value positions, const Rope& rope, const Value* factors) {
        return rope_table(positions, rope, optional(factors));
    });
    m.def("rope", [](Value x, Value table, const Rope& how) { return rope(x, table, how); });
    m.def("hadamard", &hadamard);
    m.def("rotate_rows", [](Value storage, Value rows, Value deltas, const Rope& rope, int heads,
                            int head_dim, int begin, int block, const Value* factors) {
        const StoredHeads stored{.rope = rope,
                                 .n_heads = heads,
                                 .head_dim = head_dim,
                                 .begin = begin,
                                 .hadamard = block};
        return rotate_rows(storage, rows, deltas, stored, optional(factors));
    });
    m.def("temperature", [](Value positions, float scale, int64_t length, int offset) {
        return temperature(positions, {scale, length, offset});
    });
    // `step`: token_begin, runs, run_begin, first, last. `places`: positions, key_positions, key_begin.
    m.def("attend", [](Value q, Value keys, const Value* values, const std::array<Value, 5>& step,
                       const Value* sinks, const std::vector<Value>& places, const Value* bias,
                       const py::kwargs& how) {
        AttendInputs in{.q = q,
                        .keys = keys,
                        .values = optional(values),
                        .token_begin = step[0],
                        .runs = step[1],
                        .run_begin = step[2],
                        .first = step[3],
                        .last = step[4],
                        .sinks = optional(sinks),
                        .positions = {},
                        .key_positions = {},
                        .key_begin = {},
                        .bias = optional(bias)};
        if (!places.empty()) {
            in.positions = places.at(0);
            in.key_positions = places.at(1);
            in.key_begin = places.at(2);
        }
        const AttendParams params{
            .n_heads = how["n_heads"].cast<int>(),
            .n_kv_heads = how["n_kv_heads"].cast<int>(),
            .key_dim = how["key_dim"].cast<int>(),
            .value_dim = how["value_dim"].cast<int>(),
            .scale = how["scale"].cast<float>(),
            .softcap = how["softcap"].cast<float>(),
            .flash = how["flash"].cast<bool>(),
            .bias = static_cast<PositionBias>(how["position_bias"].cast<int>()),
            .max_bias = how["max_bias"].cast<float>(),
            .max_distance = how["max_distance"].cast<int>(),
            .both_directions = how["both_directions"].cast<bool>(),
        };
        return attend(in, params);
    });
}

void bind_recurrence(py::module_& m) {
    py::class_<States>(m, "States")
        .def(py::init([](Value storage, Value read_rows, Value write_rows, Value token_begin) {
            return States{storage, read_rows, write_rows, token_begin};
        }));
    m.def("short_conv", [](Value x, Value weight, const Value* bias, const States& states) {
        return short_conv(x, weight, optional(bias), states);
    });
    m.def("token_shift", &token_shift);
    m.def("selective_scan",
          [](Value x, Value dt, Value a, Value b, Value c, Value d, const States& states) {
              return selective_scan({x, dt, a, b, c, d}, states);
          });
    m.def("ssd_scan",
          [](Value x, Value dt, Value a, Value b, Value c, Value d, const States& states) {
              return ssd_scan({.x = x, .dt = dt, .a = a, .d = d, .b = b, .c = c}, states);
          });
    m.def("wkv6", [](Value r, Value k, Value v, Value w, Value u, const States& states) {
        return wkv6({r, k, v, w, u}, states);
    });
    m.def("wkv7", [](Value r, Value w, Value k, Value v, Value a, Value b, const States& states) {
        return wkv7({r, w, k, v, a, b}, states);
    });
    m.def("delta_rule",
          [](Value q, Value k, Value v, Value g, Value beta, const States& states, bool tiled) {
              return delta_rule({q, k, v, g, beta, tiled}, states);
          });
}

}  // namespace
}  // namespace plait

PYBIND11_MODULE(plait_ops, m) {
    m.doc() = "Runs graphs of single ops, for tests.";
    plait::bind_graphs(m);
    plait::bind_rows(m);
    plait::bind_products(m);
    plait::bind_elementwise(m);
    plait::bind_attention(m);
    plait::bind_recurrence(m);
}
