#include "output.h"

#include <algorithm>

#include "made.h"
#include "numpy.h"

namespace plait::python {
namespace {

// Arrays refer to the Output, the Output to the buffer: as long as one lives, the buffer does.
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
        throw OutOfRange(text("entry ", given, " does not exist: the batch had ", n));
    if (!output.outputs.has_logits()) throw OutOfRange("this output has no logits");
    const int64_t entry = given < 0 ? given + n : given;
    const std::span<const int32_t> indices = output.outputs.indices();
    const auto found = std::ranges::lower_bound(indices, entry);
    if (found == indices.end() || *found != entry)
        throw OutOfRange(text("entry ", entry, " of the batch asked for no output"));
    const auto width = static_cast<size_t>(output.outputs.n_vocab());
    const auto row = static_cast<size_t>(found - indices.begin());
    return view_of(output.outputs.logits().data() + row * width, {output.outputs.n_vocab()}, self);
}

// What DLPack shows of an output: its logits, or its embeddings where it has no logits.
py::object shown_rows(py::handle self) {
    const py::object all = logits(self);
    if (!all.is_none()) return all;
    const py::object vectors = embeddings(self);
    if (!vectors.is_none()) return vectors;
    throw py::buffer_error("this output has neither logits nor embeddings");
}

py::object lend(py::handle self, const py::object& stream, const py::object& max_version,
                const py::object& device, const py::object& copy) {
    py::dict given;  // older NumPy knows the first alone
    if (!stream.is_none()) given["stream"] = stream;
    if (!max_version.is_none()) given["max_version"] = max_version;
    if (!device.is_none()) given["dl_device"] = device;
    if (!copy.is_none()) given["copy"] = copy;
    return shown_rows(self).attr("__dlpack__")(**given);
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
    py::class_<PyOutput>(m, "Output", only_ours(), R"(What decode() and encode() return.

The arrays are views of memory that belongs to this output alone: nothing is copied, and they stay
valid and unchanged for as long as they exist, whatever the context does next. They are writable
(some consumers of DLPack insist); nobody but their holder ever writes to them or reads them. torch.from_dlpack(output) and its like in
other libraries take the logits (the embeddings where there are none), without a copy too.

In a notebook an output shows the likeliest tokens of its rows. len() is the number of rows. Iterating gives the rows of logits.)")
        .def_property_readonly("logits", &logits,
                               R"(float32 (n_outputs, n_vocab), or None where there are none.

Unnormalised natural logarithms of the next token's probabilities; one row for each entry that asked
for one, in the order of the batch.)")
        .def_property_readonly("embeddings", &embeddings,
                               R"(float32 (n_outputs, n_embd), or None where there are none.

Pooled ones are (n_seqs, n_embd), in ascending sequence id. Not normalised. Scores ("rank") are
(n_seqs, n_scores).)")
        .def_property_readonly("indices", &indices,
                               "int32 (n_outputs,): which batch entry each row answers. Pooled: "
                               "the sequence's last entry.")
        .def("__getitem__", &logits_of, py::arg("index"),
             R"(The row of logits of a batch entry, float32 (n_vocab,).

Negative indices count from the end of the batch. IndexError where the entry does not exist or asked
for no output.)")
        .def("__iter__",
             [](py::handle self) -> py::typing::Iterator<py::array_t<float>> {
                 const py::object all = logits(self);
                 return all.is_none() ? py::iter(py::tuple()) : py::iter(all);
             })
        .def("__len__", [](const PyOutput& self) { return self.outputs.rows(); })
        .def_property_readonly(
            "model", &model, "The Model that computed it, or None where nobody holds it any more.")
        .def("__dlpack__", &lend, py::kw_only(), py::arg("stream") = py::none(),
             py::arg("max_version") = py::none(), py::arg("dl_device") = py::none(),
             py::arg("copy") = py::none())
        .def("__dlpack_device__",
             [](py::handle self) -> py::typing::Tuple<int, int> {
                 return shown_rows(self).attr("__dlpack_device__")();
             })
        .def("__repr__", &output_repr)
        .def("_repr_html_", &html);
}

}  // namespace plait::python
