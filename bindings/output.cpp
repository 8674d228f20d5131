#include "output.h"

#include <algorithm>

#include "numpy.h"
#include "objects.h"

namespace plait::python {
namespace {

// The returned array keeps the Output alive, which keeps the buffer alive.
py::array_t<float> rows(std::span<float> values, int64_t n, int64_t width, py::handle owner) {
    return view_of(values.data(), {n, width}, owner);
}

FloatRows logits(py::handle self) {
    const Outputs& outputs = py::cast<const PyOutput&>(self).outputs;
    if (!outputs.has_logits()) return py::none();
    return rows(outputs.logits(), outputs.rows(), outputs.n_vocab(), self);
}

FloatRows embeddings(py::handle self) {
    const Outputs& outputs = py::cast<const PyOutput&>(self).outputs;
    if (!outputs.has_embeddings()) return py::none();
    return rows(outputs.embeddings(), outputs.rows(), outputs.width(), self);
}

py::array_t<int32_t> indices(py::handle self) {
    const std::span<int32_t> values = py::cast<const PyOutput&>(self).outputs.indices();
    return view_of(values.data(), {static_cast<py::ssize_t>(values.size())}, self);
}

py::array_t<float> logits_of(py::handle self, const Integer& index) {
    const auto& output = py::cast<const PyOutput&>(self);
    const int64_t given = to_int64("index", index);
    const auto n = static_cast<int64_t>(output.n_entries);
    if (given < -n || given >= n)
        throw OutOfRange(text("index ", given, " is out of range: the batch had ", n, " entries"));
    if (!output.outputs.has_logits()) throw OutOfRange("this output has no logits");
    const int64_t entry = given < 0 ? given + n : given;
    const std::span<const int32_t> indices = output.outputs.indices();
    const auto found = std::ranges::lower_bound(indices, entry);
    if (found == indices.end() || *found != entry)
        throw OutOfRange(
            text("entry ", entry, " of the batch requested no output row; set logits=True for it"));
    const auto width = static_cast<size_t>(output.outputs.n_vocab());
    const auto row = static_cast<size_t>(found - indices.begin());
    return view_of(output.outputs.logits().data() + row * width, {output.outputs.n_vocab()}, self);
}

// Returns the array that DLPack exports: the logits, or the embeddings if there are no logits.
py::object exported_rows(py::handle self) {
    const py::object all = logits(self);
    if (!all.is_none()) return all;
    const py::object vectors = embeddings(self);
    if (!vectors.is_none()) return vectors;
    throw py::buffer_error("this output has neither logits nor embeddings");
}

py::object dlpack(py::handle self, const py::object& stream, const py::object& max_version,
                  const py::object& device, const py::object& copy) {
    py::dict given;  // older NumPy versions accept only `stream`
    if (!stream.is_none()) given["stream"] = stream;
    if (!max_version.is_none()) given["max_version"] = max_version;
    if (!device.is_none()) given["dl_device"] = device;
    if (!copy.is_none()) given["copy"] = copy;
    return exported_rows(self).attr("__dlpack__")(**given);
}

py::object model(const PyOutput& self) {
    return self.model && !self.model.is_none() ? self.model() : py::object(py::none());
}

py::str html(const py::object& self) {
    return py::module_::import("plait.figures").attr("output_html")(self);
}

py::str output_repr(const PyOutput& self) {
    const Outputs& outputs = self.outputs;
    std::string parts;
    if (outputs.has_logits())
        parts += text(", logits (", outputs.rows(), ", ", outputs.n_vocab(), ")");
    if (outputs.has_embeddings())
        parts += text(", embeddings (", outputs.rows(), ", ", outputs.width(), ")");
    return text("<plait.Output of ", self.n_entries, " entries: ", outputs.rows(), " rows", parts,
                ">");
}

}  // namespace

void bind_output(py::module_& m) {
    py::class_<PyOutput>(m, "Output", not_constructible(), R"(The result of decode() or encode().

The arrays are views, without a copy, of memory that belongs to this output alone. They stay valid and
unchanged while they exist, whatever the context does next. They are writable because some DLPack
consumers require it. plait never writes them again; `out[i]` and notebooks read them, so change a copy.
torch.from_dlpack(output) and its counterparts in other libraries share the logits, or the embeddings if
there are no logits.

len() returns the number of rows, and iteration yields the rows of logits. A notebook displays the most
probable tokens of each row.)")
        .def_property_readonly(
            "logits", &logits,
            R"(float32 ndarray of shape (n_outputs, n_vocab), or None if there are no logits.

Unnormalised natural log-probabilities of the next token. There is one row for each entry that
requested one, in batch order.)")
        .def_property_readonly(
            "embeddings", &embeddings,
            R"(float32 ndarray of shape (n_outputs, n_embd), or None if there are no embeddings.

Pooled embeddings have shape (n_seqs, n_embd), in order of sequence id; "rank" pooling gives scores of
shape (n_seqs, n_scores). Not normalised.)")
        .def_property_readonly("indices", &indices,
                               R"(int32 ndarray of shape (n_outputs,): the batch entry of each row.

With pooling, the last entry of each sequence.)")
        .def("__getitem__", &logits_of, py::arg("index"),
             R"(Return the logits of a batch entry.

Args:
    index: Index of the entry in the batch; negative indices count from the end.

Returns:
    float32 ndarray of shape (n_vocab,).

Raises:
    IndexError: The entry does not exist or requested no output row.)")
        .def("__iter__",
             [](py::handle self) -> py::typing::Iterator<py::array_t<float>> {
                 const py::object all = logits(self);
                 return all.is_none() ? py::iter(py::tuple()) : py::iter(all);
             })
        .def("__len__", [](const PyOutput& self) { return self.outputs.rows(); })
        .def_property_readonly(
            "model", &model, "The Model that computed the output, or None if it no longer exists.")
        .def("__dlpack__", &dlpack, py::kw_only(), py::arg("stream") = py::none(),
             py::arg("max_version") = py::none(), py::arg("dl_device") = py::none(),
             py::arg("copy") = py::none())
        .def("__dlpack_device__",
             [](py::handle self) -> py::typing::Tuple<int, int> {
                 return exported_rows(self).attr("__dlpack_device__")();
             })
        .def("__repr__", &output_repr)
        .def("_repr_html_", &html);
}

}  // namespace plait::python
