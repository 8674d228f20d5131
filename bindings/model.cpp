#include "model.h"

#include <algorithm>

#include "base/cache_folder.h"
#include "base/error.h"
#include "base/text.h"
#include "gguf/reader.h"
#include "gil_release.h"
#include "module.h"
#include "numpy.h"
#include "tensor/convert.h"

namespace plait::python {
namespace {

constexpr uint64_t kMaxChunkBytes = uint64_t{1} << 20;  // read at once while dequantising

py::tuple shape_of(const Shape& shape) {
    py::tuple result(shape.rank);
    for (uint8_t i = 0; i < shape.rank; ++i) result[i] = shape.dims[i];
    return result;
}

// Packing the weights of smaller models takes under a tenth of a second.
constexpr uint64_t kMinPackedBytes = uint64_t{64} << 20;

// Where packed weights are kept. A folder that the caller names keeps models of every size.
KeptCopies kept_copies(const PackedCache& option) {
    if (option.is_none() || py::isinstance<py::bool_>(option)) {
        if (option.ptr() == Py_False) return {};
        return {cache_folder("PLAIT_PACKED_CACHE").string(), kMinPackedBytes, {}};
    }
    if (!py::isinstance<py::str>(option) && !py::hasattr(option, "__fspath__"))
        wrong_type("packed_cache", "a folder, a bool or None", option);
    return {to_path("packed_cache", option), 0, {}};
}

PyModel open(const PathLike& path, const Flag& mmap, const PackedCache& packed_cache) {
    const std::string file = to_path("path", path);
    const LoadedModel::Options options{to_bool("mmap", mmap), kept_copies(packed_cache)};
    follow_log_level();
    PyModel model;
    const GilRelease released;
    model.loaded = LoadedModel::open(file, options);
    return model;
}

// Opens part of an image encoder's file. Reordered weights are not kept: the parts share a file.
PyModel open_image_model(const PathLike& path, const Flag& mmap, const Flag& projector) {
    const std::string file = to_path("path", path);
    LoadedModel::Options options{to_bool("mmap", mmap), {}};
    options.image_part = to_bool("projector", projector) ? ImagePart::projector : ImagePart::tower;
    follow_log_level();
    PyModel model;
    const GilRelease released;
    model.loaded = LoadedModel::open(file, options);
    return model;
}

py::object metadata(PyModel& self) {
    if (!self.metadata)
        self.metadata = read_only(to_dict(initialized(self.loaded)->file().metadata()));
    return self.metadata;
}

py::object tensors(PyModel& self) {
    if (!self.tensors) {
        py::dict all;
        for (const gguf::TensorInfo& tensor : initialized(self.loaded)->file().tensors())
            all[from_utf8(tensor.name)] = py::cast(tensor);
        self.tensors = read_only(all);
    }
    return self.tensors;
}

const gguf::TensorInfo& find(const PyModel& self, const std::string& name) {
    const gguf::TensorInfo* tensor = initialized(self.loaded)->file().find(name);
    if (tensor == nullptr)
        throw py::key_error("the model has no tensor \"" + name + "\"; see Model.tensors");
    return *tensor;
}

// Reads and converts in chunks, so that a large tensor is never in memory twice.
void read_floats(const gguf::File& file, const gguf::TensorInfo& tensor, float* target) {
    const DTypeInfo& format = info(tensor.type.dtype);
    const uint64_t blocks = std::max<uint64_t>(1, kMaxChunkBytes / format.block_bytes);
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
    const std::string text = to_text("name", name);
    const gguf::TensorInfo& tensor = find(self, text);
    const gguf::File& file = initialized(self.loaded)->file();
    const Shape& shape = tensor.type.shape;
    const std::vector<py::ssize_t> sizes(shape.dims.begin(), shape.dims.begin() + shape.rank);
    if (tensor.type.dtype == DType::i32) {
        py::array_t<int32_t> result(sizes);
        const std::span values(result.mutable_data(), static_cast<size_t>(result.size()));
        const GilRelease released;
        file.read(tensor, 0, std::as_writable_bytes(values));
        return result;
    }
    py::array_t<float> result(sizes);
    float* values = result.mutable_data();
    const GilRelease released;
    read_floats(file, tensor, values);
    return result;
}

py::array_t<float> tensor_rows(const PyModel& self, const Text& name, const ArrayLike& rows) {
    const std::string key = to_text("name", name);
    const gguf::TensorInfo& tensor = find(self, key);
    const gguf::File& file = initialized(self.loaded)->file();
    const Shape& shape = tensor.type.shape;
    if (shape.rank != 2 || tensor.type.dtype == DType::i32)
        throw InvalidArgument(text("tensor_rows: name: \"", tensor.name, "\" is not a matrix"));
    const auto wanted = int32_array<InvalidArgument>("rows", rows);
    if (wanted.ndim() != 1)
        throw InvalidArgument(
            text("tensor_rows: rows: expected the shape (n,), got ", shape_text(wanted)));
    const std::span numbers(wanted.data(), static_cast<size_t>(wanted.size()));
    for (const int32_t row : numbers)
        if (row < 0 || row >= shape[0])
            throw OutOfRange(
                text("tensor_rows: rows: expected 0 to ", shape[0] - 1, ", got ", row));
    const auto width = static_cast<size_t>(shape[1]);
    std::vector<float> values(numbers.size() * width);
    {
        const GilRelease released;
        std::vector<std::byte> bytes(row_bytes(tensor.type.dtype, width));
        for (size_t i = 0; i < numbers.size(); ++i) {
            file.read(tensor, static_cast<uint64_t>(numbers[i]) * bytes.size(), bytes);
            dequantize(tensor.type.dtype, bytes.data(), values.data() + i * width, width);
        }
    }
    return take_vector(std::move(values), {wanted.size(), shape[1]});
}

MetadataDict read_metadata(const PathLike& path) {
    const std::string file = to_path("path", path);
    return to_dict([&] {
        const GilRelease released;
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
    const ModelInfo& info = initialized(self.loaded)->info();
    return py::str(
               "<plait.Model {}: {} layers, n_embd={}, n_vocab={}, {:.4g} M parameters, {:.4g} MB>")
        .format(info.arch, info.n_layers, info.width, info.n_vocab,
                static_cast<double>(initialized(self.loaded)->n_params()) / 1e6,
                static_cast<double>(initialized(self.loaded)->nbytes()) / 1e6);
}

using ModelClass = py::class_<PyModel>;

constexpr const char* kModelDoc =
    R"(The metadata and weights of a GGUF model file.

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

Source: cpp/runtime/loaded_model.cpp, cpp/backend/packed_file.h)";

void bind_tensor_info(py::module_& m) {
    using gguf::TensorInfo;
    py::class_<TensorInfo>(m, "TensorInfo", not_constructible(),
                           "Name, shape and element type of a tensor in a model file.")
        .def_property_readonly(
            "name", [](const TensorInfo& t) { return from_utf8(t.name); },
            "Name of the tensor in the file.")
        .def_property_readonly(
            "shape",
            [](const TensorInfo& t) -> py::typing::Tuple<py::int_, py::ellipsis> {
                return shape_of(t.type.shape);
            },
            "Shape, outermost axis first as in NumPy: a weight matrix is (n_out, n_in).")
        .def_property_readonly(
            "dtype", [](const TensorInfo& t) { return std::string(info(t.type.dtype).name); },
            "Name of the element type in GGUF, such as \"F32\" or \"Q4_K\".")
        .def_property_readonly(
            "nbytes", [](const TensorInfo& t) { return t.bytes; }, "Size in the file in bytes.")
        .def("__repr__", &tensor_repr);
}

void bind_properties(ModelClass& model) {
    const auto number = [](auto member) {
        return [member](const PyModel& self) { return initialized(self.loaded)->info().*member; };
    };
    model
        .def_property_readonly(
            "path", [](const PyModel& self) { return from_utf8(initialized(self.loaded)->path()); },
            "Path of the file.")
        .def_property_readonly("arch", number(&ModelInfo::arch),
                               "Name of the architecture, such as \"llama\".")
        .def_property_readonly("n_vocab", number(&ModelInfo::n_vocab),
                               "Vocabulary size, which is the length of a row of logits.")
        .def_property_readonly("n_embd", number(&ModelInfo::width),
                               "Length of an input or output embedding.")
        .def_property_readonly("n_layer", number(&ModelInfo::n_layers), "Number of layers.")
        .def_property_readonly(
            "n_mtp_layer", number(&ModelInfo::n_drafting),
            "Number of layers for multi-token prediction, which follow the others; "
            "0 if the file has none or their architecture's are not supported.")
        .def_property_readonly(
            "n_ctx_train", number(&ModelInfo::n_ctx_train),
            "Context length in training, in tokens; 0 if the file does not state it.")
        .def_property_readonly("n_pos_per_token", number(&ModelInfo::n_pos_per_token),
                               "Number of positions per token: 4 for M-RoPE, else 1.")
        .def_property_readonly(
            "n_params", [](const PyModel& self) { return initialized(self.loaded)->n_params(); },
            "Number of weights.")
        .def_property_readonly(
            "nbytes", [](const PyModel& self) { return initialized(self.loaded)->nbytes(); },
            "Total size of all tensors in the file in bytes.")
        .def_property_readonly(
            "metadata", [](PyModel& self) -> Metadata { return metadata(self); },
            R"(Key-value pairs of the file, in file order; read-only.

Values are int, float, bool, str, ndarray or list of str. Bytes that are not UTF-8 are kept as
surrogates (PEP 383).)")
        .def_property_readonly(
            "tensors", [](PyModel& self) -> Tensors { return tensors(self); },
            "TensorInfo of each tensor by name, in file order; read-only.");
}

void bind_files(ModelClass& model) {
    model
        .def("tensor", &tensor, py::arg("name"), R"(Return a dequantised copy of a tensor.

Args:
    name: Name of the tensor, a key of `tensors`.

Returns:
    float32 ndarray with the shape of the tensor; int32 if its element type is I32.

Raises:
    KeyError: The model has no such tensor.
    ModelError: The file has changed since it was opened.)")
        .def("tensor_rows", &tensor_rows, py::arg("name"), py::arg("rows"),
             R"(Return dequantised copies of rows of a matrix, such as the embeddings of tokens.

Args:
    name: Name of the tensor, a key of `tensors`.
    rows: Row numbers, shape (n,).

Returns:
    float32 ndarray of shape (n, n_in).

Raises:
    KeyError: The model has no such tensor.
    ValueError: The tensor is not a matrix.
    IndexError: A row does not exist.
    ModelError: The file has changed since it was opened.)")
        .def("load_lora", &load_lora, py::arg("path"), py::arg("rank_stabilized") = py::none(),
             R"(Open a low-rank adapter for this model, for use with `Context.set_lora`.

Args:
    path: Path of a GGUF file, as written by llama.cpp's convert_lora_to_gguf.py.
    rank_stabilized: Scale by alpha / sqrt(rank) (arXiv:2312.03732) instead of alpha / rank. None:
        use adapter.lora.rank_stabilized from the file, which the converter does not write.

Returns:
    The Adapter.

Raises:
    ModelError: The file is not an adapter or is for another model. The message names the tensor.
    UnsupportedError: The adapter changes a tensor that is not a matrix.

Source: cpp/runtime/steering/adapter.cpp)");
}

}  // namespace

void check_unchanged(const gguf::File& file) {
    const GilRelease released;
    if (!gguf::File::open(file.path())->has_same_files(file))
        throw ModelError(text(file.path(),
                              ": changed since it was opened: it was modified or replaced; open "
                              "it again"));
}

py::object read_only(py::handle dict) {
    return py::module_::import("types").attr("MappingProxyType")(dict);
}

void bind_model(py::module_& m) {
    bind_tensor_info(m);

    ModelClass model(m, "Model", kModelDoc);
    model
        .def("__init__", init(&open), py::detail::is_new_style_constructor(), py::arg("path"),
             py::arg("mmap") = false, py::arg("packed_cache") = py::none())
        .def("__repr__", &model_repr);
    bind_properties(model);
    bind_files(model);

    m.def("open_image_model", &open_image_model, py::arg("path"), py::arg("mmap"),
          py::arg("projector"), "Open the tower or the projector of an image encoder; see Vision.");
    m.def(
        "check_unchanged",
        [](const PyModel& self) {
            const std::shared_ptr<const LoadedModel> loaded = initialized(self.loaded);
            check_unchanged(loaded->file());
        },
        py::arg("model"),
        R"(Raise ModelError if a model's path leads to other files than those that it opened.

Args:
    model: The model.

Raises:
    ModelError: A file was modified or replaced, or cannot be read.)");
    m.def("read_metadata", &read_metadata, py::arg("path"),
          R"(Read the key-value pairs of a GGUF file, with or without weights.

Args:
    path: Path of the file.

Returns:
    The pairs as a dict, with values as in `Model.metadata`.

Raises:
    ModelError: The file cannot be read or is not a GGUF file.)");
}

}  // namespace plait::python
