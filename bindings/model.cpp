#include "model.h"

#include <algorithm>

#include "gguf/reader.h"
#include "log.h"
#include "numpy.h"
#include "tensor/convert.h"
#include "unlocked.h"

namespace plait::python {
namespace {

constexpr uint64_t kMostBytesAtOnce = uint64_t{1} << 20;  // of a file, while dequantising

py::tuple shape_of(const Shape& shape) {
    py::tuple result(shape.rank);
    for (uint8_t i = 0; i < shape.rank; ++i) result[i] = shape.dims[i];
    return result;
}

PyModel open(const PathLike& path, const Flag& mmap) {
    const std::string file = to_path("path", path);
    const bool mapped = to_bool("mmap", mmap);
    follow_log_level();
    PyModel model;
    const Unlocked unlocked;
    model.loaded = LoadedModel::open(file, mapped);
    return model;
}

py::object metadata(PyModel& self) {
    if (!self.metadata) self.metadata = read_only(to_dict(made(self.loaded)->file().metadata()));
    return self.metadata;
}

py::object tensors(PyModel& self) {
    if (!self.tensors) {
        py::dict all;
        for (const gguf::TensorInfo& tensor : made(self.loaded)->file().tensors())
            all[from_utf8(tensor.name)] = py::cast(tensor);
        self.tensors = read_only(all);
    }
    return self.tensors;
}

const gguf::TensorInfo& find(const PyModel& self, const std::string& name) {
    const gguf::TensorInfo* tensor = made(self.loaded)->file().find(name);
    if (tensor == nullptr) throw py::key_error("the model has no tensor \"" + name + "\"");
    return *tensor;
}

// Reads and converts piece by piece, so that a large tensor is never held twice.
void read_floats(const gguf::File& file, const gguf::TensorInfo& tensor, float* target) {
    const DTypeInfo& format = info(tensor.type.dtype);
    const uint64_t blocks = std::max<uint64_t>(1, kMostBytesAtOnce / format.block_bytes);
    std::vector<std::byte> bytes(std::min(blocks * format.block_bytes, tensor.bytes));
    for (uint64_t at = 0; at < tensor.bytes; at += bytes.size()) {
        bytes.resize(std::min<uint64_t>(bytes.size(), tensor.bytes - at));
        file.read(tensor, at, bytes);
        const uint64_t n = bytes.size() / format.block_bytes * format.block_elements;
        dequantize(tensor.type.dtype, bytes.data(), target, n);
        target += n;
    }
}

py::array tensor(const PyModel& self, const Text& name) {
    const gguf::TensorInfo& tensor = find(self, to_text("name", name));
    const gguf::File& file = made(self.loaded)->file();
    const Shape& shape = tensor.type.shape;
    const std::vector<py::ssize_t> sizes(shape.dims.begin(), shape.dims.begin() + shape.rank);
    if (tensor.type.dtype == DType::i32) {
        py::array_t<int32_t> result(sizes);
        const std::span values(result.mutable_data(), static_cast<size_t>(result.size()));
        const Unlocked unlocked;
        file.read(tensor, 0, std::as_writable_bytes(values));
        return result;
    }
    py::array_t<float> result(sizes);
    float* values = result.mutable_data();
    const Unlocked unlocked;
    read_floats(file, tensor, values);
    return result;
}

MetadataDict read_metadata(const PathLike& path) {
    const std::string file = to_path("path", path);
    return to_dict([&] {
        const Unlocked unlocked;
        return gguf::File::open(file);
    }()
                       ->metadata());
}

py::str tensor_repr(const gguf::TensorInfo& tensor) {
    return py::str("TensorInfo(name={!r}, shape={}, dtype={!r}, nbytes={})")
        .format(from_utf8(tensor.name), shape_of(tensor.type.shape),
                std::string(info(tensor.type.dtype).name), tensor.bytes);
}

py::str model_repr(const PyModel& self) {
    const ModelInfo& info = made(self.loaded)->info();
    return py::str(
               "<plait.Model {}: {} layers, n_embd={}, n_vocab={}, {:.4g} M parameters, {:.4g} MB>")
        .format(info.arch, info.n_layers, info.width, info.n_vocab,
                static_cast<double>(made(self.loaded)->n_params()) / 1e6,
                static_cast<double>(made(self.loaded)->nbytes()) / 1e6);
}

using ModelClass = py::class_<PyModel>;

constexpr const char* kModelDoc =
    R"(A model file, opened: its metadata and its weights.

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

Source: cpp/runtime/loaded_model.cpp)";

void bind_tensor_info(py::module_& m) {
    using gguf::TensorInfo;
    py::class_<TensorInfo>(m, "TensorInfo", only_ours(), "What a tensor of a model file is.")
        .def_property_readonly(
            "name", [](const TensorInfo& t) { return from_utf8(t.name); }, "Its name in the file.")
        .def_property_readonly(
            "shape",
            [](const TensorInfo& t) -> py::typing::Tuple<py::int_, py::ellipsis> {
                return shape_of(t.type.shape);
            },
            "Outermost axis first, as in NumPy: a matrix product's weight is (n_out, n_in).")
        .def_property_readonly(
            "dtype", [](const TensorInfo& t) { return std::string(info(t.type.dtype).name); },
            "Element type as GGUF tools write it: \"F32\", \"Q4_K\".")
        .def_property_readonly(
            "nbytes", [](const TensorInfo& t) { return t.bytes; }, "Bytes in the file.")
        .def("__repr__", &tensor_repr);
}

void bind_properties(ModelClass& model) {
    const auto number = [](auto member) {
        return [member](const PyModel& self) { return made(self.loaded)->info().*member; };
    };
    model
        .def_property_readonly(
            "path", [](const PyModel& self) { return from_utf8(made(self.loaded)->path()); },
            "The file it was opened from.")
        .def_property_readonly("arch", number(&ModelInfo::arch),
                               "Name of the architecture: \"llama\".")
        .def_property_readonly("n_vocab", number(&ModelInfo::n_vocab),
                               "Number of token ids, the width of a row of logits.")
        .def_property_readonly("n_embd", number(&ModelInfo::width),
                               "Width of an embedding, input and output.")
        .def_property_readonly("n_layer", number(&ModelInfo::n_layers), "Number of layers.")
        .def_property_readonly(
            "n_ctx_train", number(&ModelInfo::n_ctx_train),
            "Tokens of the longest text in training; 0 where the file says nothing.")
        .def_property_readonly("n_pos_per_token", number(&ModelInfo::n_pos_per_token),
                               "Positions of a token: 1, or 4 for M-RoPE.")
        .def_property_readonly(
            "n_params", [](const PyModel& self) { return made(self.loaded)->n_params(); },
            "Number of weights.")
        .def_property_readonly(
            "nbytes", [](const PyModel& self) { return made(self.loaded)->nbytes(); },
            "Bytes of all tensors in the file.")
        .def_property_readonly(
            "metadata", [](PyModel& self) -> Metadata { return metadata(self); },
            R"(The file's key-value pairs, in its order; read-only.

Values are int, float, bool, str, ndarray or list of str. Bytes of a string that are not UTF-8 are
kept as surrogates (PEP 383).)")
        .def_property_readonly(
            "tensors", [](PyModel& self) -> Tensors { return tensors(self); },
            "The file's tensors by name, in its order; read-only.");
}

void bind_files(ModelClass& model) {
    model
        .def("tensor", &tensor, py::arg("name"), R"(A copy of a tensor, dequantised.

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
    The file has changed since it was opened.)")
        .def("load_lora", &load_lora, py::arg("path"), py::arg("rank_stabilized") = py::none(),
             R"(Open a low-rank adapter of this model, for `Context.set_lora`.

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

Source: cpp/runtime/steering/adapter.cpp)");
}

}  // namespace

py::object read_only(py::handle dict) {
    return py::module_::import("types").attr("MappingProxyType")(dict);
}

void bind_model(py::module_& m) {
    bind_tensor_info(m);

    ModelClass model(m, "Model", kModelDoc);
    model
        .def("__init__", init(&open), py::detail::is_new_style_constructor(), py::arg("path"),
             py::arg("mmap") = false)
        .def("__repr__", &model_repr);
    bind_properties(model);
    bind_files(model);

    m.def("read_metadata", &read_metadata, py::arg("path"),
          R"(The key-value pairs of a GGUF file, which need not hold weights.

Values are as in `Model.metadata`. Raises ModelError for a file that cannot be read or is not GGUF.)");
}

}  // namespace plait::python
