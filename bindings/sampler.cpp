// Drawing tokens. The class for users is plait.Sampler (python/plait/sampling.py), which says in words
// what is passed here as tuples.
#include "sampling/sampler.h"

#include <pybind11/stl.h>

#include <algorithm>

#include "made.h"
#include "numpy.h"
#include "sampling/logprobs.h"
#include "unlocked.h"

namespace plait::python {
namespace {

using namespace sampling;

using FloatRows2 = py::array_t<float, py::array::c_style>;
using Keys = std::vector<uint64_t>;
using Masks = std::optional<py::array_t<uint32_t, py::array::c_style>>;

template <typename T>
T at(const py::tuple& tuple, size_t i) {
    return py::cast<T>(tuple[i]);
}

Stage stage_of(const py::tuple& t) {
    const auto name = at<std::string>(t, 0);
    if (name == "bias")
        return Bias{.added = at<std::unordered_map<int32_t, double>>(t, 1),
                    .allowed = at<std::unordered_set<int32_t>>(t, 2)};
    if (name == "penalties")
        return Penalties{.repetition = at<double>(t, 1),
                         .presence = at<double>(t, 2),
                         .frequency = at<double>(t, 3),
                         .last_n = at<int64_t>(t, 4)};
    if (name == "dry")
        return Dry{.multiplier = at<double>(t, 1),
                   .base = at<double>(t, 2),
                   .allowed_length = at<int64_t>(t, 3),
                   .last_n = at<int64_t>(t, 4),
                   .breakers = at<std::unordered_set<int32_t>>(t, 5)};
    if (name == "top_n_sigma") return TopNSigma{at<double>(t, 1)};
    if (name == "top_k") return TopK{at<int64_t>(t, 1)};
    if (name == "typical") return Typical{at<double>(t, 1)};
    if (name == "top_p") return TopP{at<double>(t, 1)};
    if (name == "min_p") return MinP{at<double>(t, 1)};
    if (name == "xtc") return Xtc{at<double>(t, 1), at<double>(t, 2)};
    if (name == "temperature")
        return Temperature{
            .value = at<double>(t, 1), .range = at<double>(t, 2), .exponent = at<double>(t, 3)};
    if (name == "mirostat") return Mirostat{at<double>(t, 1), at<double>(t, 2)};
    throw InvalidArgument(text("there is no stage \"", name, "\""));
}

std::vector<Stage> stages_of(const StageList& list) {
    std::vector<Stage> stages;
    for (const py::handle stage : list) stages.push_back(stage_of(py::cast<py::tuple>(stage)));
    return stages;
}

// The arrays stay with the caller.
Rows rows_of(const FloatRows2& logits, const Keys& keys, const Masks& masks) {
    if (logits.ndim() != 2 || logits.shape(0) != static_cast<py::ssize_t>(keys.size()) ||
        logits.shape(1) < 1)
        throw InvalidArgument(text("expected logits of shape (", keys.size(), ", n_vocab), got ",
                                   shape_text(logits)));
    Rows rows{.logits = {logits.data(), static_cast<size_t>(logits.size())},
              .keys = keys,
              .masks = {},
              .n_vocab = static_cast<size_t>(logits.shape(1))};
    if (!masks) return rows;
    const py::ssize_t words = (logits.shape(1) + 31) / 32;
    if (masks->ndim() != 2 || masks->shape(0) != logits.shape(0) || masks->shape(1) != words)
        throw InvalidArgument(text("expected masks of shape (", keys.size(), ", ", words, "), got ",
                                   shape_text(*masks)));
    rows.masks = {masks->data(), static_cast<size_t>(masks->size())};
    return rows;
}

void check_different(Keys keys) {
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end())
        throw InvalidArgument(text("sequence ", *twice, " has two rows in one call"));
}

struct PySampler : Zeroed {
    std::unique_ptr<sampling::Sampler> sampler;

    sampling::Sampler& get() const { return *made(sampler); }
    size_t checked_stage(size_t stage) const {
        if (stage > get().n_stages())
            throw OutOfRange(text("stage ", stage, " of ", get().n_stages()));
        return stage;
    }
};

py::array_t<int32_t> sample(const PySampler& self, const FloatRows2& logits, const Keys& keys,
                            const Masks& masks, size_t first) {
    const Rows rows = rows_of(logits, keys, masks);
    check_different(keys);
    self.checked_stage(first);
    py::array_t<int32_t> tokens(static_cast<py::ssize_t>(rows.n()));
    const std::span<int32_t> out(tokens.mutable_data(), rows.n());
    const Unlocked unlocked;
    self.get().sample(rows, first, out);
    return tokens;
}

py::array_t<float> apply(const PySampler& self, const FloatRows2& logits, const Keys& keys,
                         const Masks& masks, size_t first, size_t last) {
    const Rows rows = rows_of(logits, keys, masks);
    self.checked_stage(last);
    py::array_t<float> result({logits.shape(0), logits.shape(1)});
    const std::span<float> out(result.mutable_data(), static_cast<size_t>(result.size()));
    const Unlocked unlocked;
    self.get().apply(rows, first, last, out);
    return result;
}

py::array_t<double> probabilities(const PySampler& self, const FloatRows2& logits, const Keys& keys,
                                  const Masks& masks, size_t first) {
    const Rows rows = rows_of(logits, keys, masks);
    self.checked_stage(first);
    py::array_t<double> result({logits.shape(0), logits.shape(1)});
    const std::span<double> out(result.mutable_data(), static_cast<size_t>(result.size()));
    const Unlocked unlocked;
    self.get().probabilities(rows, first, out);
    return result;
}

py::array_t<double> logprobs(const FloatRows2& logits, const std::vector<int32_t>& tokens) {
    if (logits.ndim() != 2 || logits.shape(0) != static_cast<py::ssize_t>(tokens.size()))
        throw InvalidArgument(text("logits: expected the shape (", tokens.size(),
                                   ", n_vocab), got ", shape_text(logits)));
    for (const int32_t token : tokens)
        if (token < 0 || token >= logits.shape(1))
            throw OutOfRange(text("tokens: ", token, " is outside the vocabulary of ",
                                  logits.shape(1), " tokens"));
    const std::span<const float> in(logits.data(), static_cast<size_t>(logits.size()));
    py::array_t<double> result(static_cast<py::ssize_t>(tokens.size()));
    const std::span<double> out(result.mutable_data(), tokens.size());
    const Unlocked unlocked;
    token_logprobs(in, tokens, out);
    return result;
}

}  // namespace

void bind_sampler(py::module_& m) {
    py::class_<PySampler>(
        m, "SamplerChain",
        R"(What plait.Sampler calls: methods in order, and what each sequence drew.

`stages`: tuples of a method's name and its numbers. Sequences are named by any number (`keys`).
Rows are float32 (n, n_vocab), masks uint32 (n, (n_vocab + 31) // 32) with a bit for each token that
may be drawn. Calls run without the GIL.

Source: cpp/sampling/sampler.h)")
        .def(py::init([](const StageList& stages, std::vector<int32_t> forced, uint64_t seed) {
                 auto self = std::make_unique<PySampler>();
                 self->sampler = std::make_unique<sampling::Sampler>(stages_of(stages),
                                                                     std::move(forced), seed);
                 return self;
             }),
             py::arg("stages"), py::arg("forced"), py::arg("seed"))
        .def("sample", &sample, py::arg("logits").noconvert(), py::arg("keys"),
             py::arg("masks") = py::none(), py::arg("first") = 0,
             "A token for each row, noted as the next of its sequence: int32 (n,). Stages before "
             "`first` are left out. ValueError, and nothing noted, for rows that hold NaN or +inf "
             "or leave no token.")
        .def("apply", &apply, py::arg("logits").noconvert(), py::arg("keys"), py::arg("masks"),
             py::arg("first"), py::arg("last"),
             "The rows after stages [first, last), float32 (n, n_vocab): -inf where a token has "
             "gone.")
        .def("probabilities", &probabilities, py::arg("logits").noconvert(), py::arg("keys"),
             py::arg("masks") = py::none(), py::arg("first") = 0,
             "What sample() would draw from: float64 (n, n_vocab).")
        .def(
            "start",
            [](const PySampler& self, uint64_t key, const std::vector<int32_t>& tokens) {
                self.get().start(key, tokens);
            },
            py::arg("key"), py::arg("tokens"),
            "The sequence holds these tokens, and nothing was drawn of it yet; its random numbers "
            "go on.")
        .def(
            "accept",
            [](const PySampler& self, uint64_t key, const std::vector<int32_t>& tokens) {
                self.get().accept(key, tokens);
            },
            py::arg("key"), py::arg("tokens"), "Tokens of the sequence that somebody else chose.")
        .def(
            "reset",
            [](const PySampler& self, std::optional<uint64_t> key) {
                key ? self.get().reset(*key) : self.get().reset();
            },
            py::arg("key") = py::none(), "Forget a sequence; None: all of them.")
        .def(
            "tokens",
            [](const PySampler& self, uint64_t key) {
                auto tokens = self.get().history(key).tokens;
                const auto n = static_cast<py::ssize_t>(tokens.size());
                return take_vector(std::move(tokens), {n});
            },
            py::arg("key"), "A copy of what it knows the sequence to hold: int32 (n,).");

    m.def("token_logprobs", &logprobs, py::arg("logits").noconvert(), py::arg("tokens"),
          R"(Natural logarithms of the probabilities that rows give to tokens, one each.

`logits` float32 (n, n_vocab), `tokens` (n,); the result is float64 (n,). Raises ValueError for rows
that hold NaN or +inf, or nothing but -inf, IndexError for a token outside the vocabulary.)");
}

}  // namespace plait::python
