#include "gguf/keys.h"
#include "log.h"
#include "model.h"
#include "model/control_vector.h"
#include "numpy.h"
#include "unlocked.h"

namespace plait::python {
namespace {

using Names = py::typing::List<py::str>;
using TokenIds = py::typing::List<py::int_>;

py::array_t<float> load_control_vector(const PathLike& path) {
    const std::string name = to_path("path", path);
    follow_log_level();
    ControlVector vector;
    {
        const Unlocked unlocked;
        vector = read_control_vector(*gguf::File::open(name));
    }
    const auto width = static_cast<py::ssize_t>(vector.width);
    const auto n = static_cast<py::ssize_t>(vector.rows.size()) / width;
    return take_vector(std::move(vector.rows), {n, width});
}

Names weights(const PyAdapter& self) {
    py::list names;
    for (const Adapter::Delta& delta : self.adapter->deltas())
        names.append(from_utf8(self.adapter->model().weights().name(delta.base)));
    return names;
}

py::str adapter_repr(const PyAdapter& self) {
    return py::str("<plait.Adapter {!r}: {} weights, alpha={:.6g}>")
        .format(from_utf8(self.adapter->path()), self.adapter->deltas().size(),
                self.adapter->alpha());
}

}  // namespace

PyAdapter load_lora(const PyModel& self, const PathLike& path,
                    const OptionalFlag& rank_stabilized) {
    const std::string file = to_path("path", path);
    std::optional<bool> stabilized;
    if (!rank_stabilized.is_none()) stabilized = to_bool("rank_stabilized", rank_stabilized);
    follow_log_level();
    const std::shared_ptr<const LoadedModel> model = made(self.loaded);
    PyAdapter adapter;
    const Unlocked unlocked;
    adapter.adapter = Adapter::open(file, model, stabilized);
    return adapter;
}

void bind_adapter(py::module_& m) {
    py::class_<PyAdapter>(
        m, "Adapter", only_ours(),
        R"(A low-rank adapter (LoRA, arXiv:2106.09685) of a model; see `Model.load_lora`.

It never changes and may be active in any number of contexts of its model.

Source: cpp/runtime/steering/adapter.cpp)")
        .def_property_readonly(
            "path", [](const PyAdapter& self) { return from_utf8(self.adapter->path()); },
            "The file it was opened from.")
        .def_property_readonly(
            "name",
            [](const PyAdapter& self) {
                return from_utf8(self.adapter->file().metadata().string(gguf::keys::kName, ""));
            },
            "What the file calls it; empty where it says nothing.")
        .def_property_readonly(
            "alpha", [](const PyAdapter& self) { return self.adapter->alpha(); },
            "What the file scales by, before the rank; 0 where it says nothing, which means 1.")
        .def_property_readonly("weights", &weights, "Names of the model's tensors that it changes.")
        .def_property_readonly(
            "invocation_tokens",
            [](const PyAdapter& self) -> TokenIds {
                py::list ids;
                for (const int32_t id : self.adapter->invocation_tokens()) ids.append(id);
                return ids;
            },
            "Of an activated adapter (arXiv:2504.12397), the tokens from which on it is meant to "
            "be "
            "active; else none. Who feeds them sets the adapter before.")
        .def_property_readonly(
            "metadata",
            [](PyAdapter& self) -> Metadata {
                if (!self.metadata)
                    self.metadata = read_only(to_dict(self.adapter->file().metadata()));
                return self.metadata;
            },
            "The file's key-value pairs, read-only; as `Model.metadata`.")
        .def("__repr__", &adapter_repr);

    m.def("load_control_vector", &load_control_vector, py::arg("path"),
          R"(The directions of a GGUF file, for `Context.set_control_vector`: float32 (n, n_embd).

Row i is for layer i: the file's direction.i, or zeros where it has none. Raises ModelError for a file
that is no control vector.)");
}

}  // namespace plait::python
