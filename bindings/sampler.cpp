// The class SamplerChain. The public class is plait.Sampler, which converts its arguments to the
// tuples that SamplerChain accepts.
#include "sampling/sampler.h"

#include <pybind11/stl.h>

#include <algorithm>

#include "gil_release.h"
#include "numpy.h"
#include "objects.h"
#include "sampling/candidates.h"

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
        return sampling::Temperature{
            .value = at<double>(t, 1), .range = at<double>(t, 2), .exponent = at<double>(t, 3)};
    if (name == "mirostat") return Mirostat{at<double>(t, 1), at<double>(t, 2)};
    throw InvalidArgument(text("stages: unknown stage \"", name, "\""));
}

std::vector<Stage> stages_of(const StageList& list) {
    std::vector<Stage> stages;
    for (const py::handle stage : list) stages.push_back(stage_of(py::cast<py::tuple>(stage)));
    return stages;
}

// The returned spans refer to the arguments.
Rows rows_of(const FloatRows2& logits, const Keys& keys, const Masks& masks) {
    if (logits.ndim() != 2 || logits.shape(0) != static_cast<py::ssize_t>(keys.size()) ||
        logits.shape(1) < 1)
        throw InvalidArgument(text("logits: expected the shape (", keys.size(), ", n_vocab), got ",
                                   shape_text(logits)));
    Rows rows{.logits = {logits.data(), static_cast<size_t>(logits.size())},
              .keys = keys,
              .masks = {},
              .n_vocab = static_cast<size_t>(logits.shape(1))};
    if (!masks) return rows;
    const py::ssize_t words = (logits.shape(1) + 31) / 32;
    if (masks->ndim() != 2 || masks->shape(0) != logits.shape(0) || masks->shape(1) != words)
        throw InvalidArgument(text("masks: expected the shape (", keys.size(), ", ", words,
                                   "), got ", shape_text(*masks)));
    rows.masks = {masks->data(), static_cast<size_t>(masks->size())};
    return rows;
}

void check_distinct(Keys keys) {
    std::sort(keys.begin(), keys.end());
    const auto duplicate = std::adjacent_find(keys.begin(), keys.end());
    if (duplicate != keys.end())
        throw InvalidArgument(
            text("keys: sequence ", *duplicate, " has more than one row in the call"));
}

struct PySampler : ZeroInitialized {
    std::unique_ptr<sampling::Sampler> sampler;

    sampling::Sampler& get() const { return *initialized(sampler); }
    size_t checked_stage(size_t stage) const {
        if (stage > get().n_stages())
            throw OutOfRange(text("stage ", stage, " is out of range; the sampler has ",
                                  get().n_stages(), " stages"));
        return stage;
    }
};

py::array_t<int32_t> sample(const PySampler& self, const FloatRows2& logits, const Keys& keys,
                            const Masks& masks, size_t first) {
    const Rows rows = rows_of(logits, keys, masks);
    check_distinct(keys);
    self.checked_stage(first);
    py::array_t<int32_t> tokens(static_cast<py::ssize_t>(rows.n()));
    const std::span<int32_t> out(tokens.mutable_data(), rows.n());
    const GilRelease released;
    self.get().sample(rows, first, out);
    return tokens;
}

py::array_t<float> apply(const PySampler& self, const FloatRows2& logits, const Keys& keys,
                         const Masks& masks, size_t first, size_t last) {
    const Rows rows = rows_of(logits, keys, masks);
    self.checked_stage(last);
    py::array_t<float> result({logits.shape(0), logits.shape(1)});
    const std::span<float> out(result.mutable_data(), static_cast<size_t>(result.size()));
    const GilRelease released;
    self.get().apply(rows, first, last, out);
    return result;
}

py::array_t<double> probabilities(const PySampler& self, const FloatRows2& logits, const Keys& keys,
                                  const Masks& masks, size_t first) {
    const Rows rows = rows_of(logits, keys, masks);
    self.checked_stage(first);
    py::array_t<double> result({logits.shape(0), logits.shape(1)});
    const std::span<double> out(result.mutable_data(), static_cast<size_t>(result.size()));
    const GilRelease released;
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
    const GilRelease released;
    token_logprobs(in, tokens, out);
    return result;
}

using SamplerClass = py::class_<PySampler>;

void bind_rows(SamplerClass& sampler) {
    sampler
        .def("sample", &sample, py::arg("logits").noconvert(), py::arg("keys"),
             py::arg("masks") = py::none(), py::arg("first") = 0,
             R"(Sample one token per row and append it to the history of its sequence.

Args:
    logits: float32 array of shape (n, n_vocab).
    keys: Keys of the n sequences, all different.
    masks: uint32 array of shape (n, (n_vocab + 31) // 32), or None.
    first: Index of the first stage to apply.

Returns:
    int32 ndarray of shape (n,).

Raises:
    ValueError: A row contains NaN or +inf, or no token remains. No history changes.)")
        .def("apply", &apply, py::arg("logits").noconvert(), py::arg("keys"), py::arg("masks"),
             py::arg("first"), py::arg("last"), R"(Return the rows after stages [first, last).

Args:
    logits: float32 array of shape (n, n_vocab).
    keys: Keys of the n sequences.
    masks: uint32 array of shape (n, (n_vocab + 31) // 32), or None.
    first: Index of the first stage to apply.
    last: Index after the last stage to apply.

Returns:
    float32 ndarray of shape (n, n_vocab), -inf for removed tokens.)")
        .def("probabilities", &probabilities, py::arg("logits").noconvert(), py::arg("keys"),
             py::arg("masks") = py::none(), py::arg("first") = 0,
             R"(Return the distributions that sample() would draw from.

Args:
    logits: float32 array of shape (n, n_vocab).
    keys: Keys of the n sequences.
    masks: uint32 array of shape (n, (n_vocab + 31) // 32), or None.
    first: Index of the first stage to apply.

Returns:
    float64 ndarray of shape (n, n_vocab).)");
}

void bind_histories(SamplerClass& sampler) {
    sampler
        .def(
            "start",
            [](const PySampler& self, uint64_t key, const std::vector<int32_t>& tokens) {
                self.get().start(key, tokens);
            },
            py::arg("key"), py::arg("tokens"),
            R"(Set the history of a sequence, none of it sampled. Its random numbers continue.

Args:
    key: Key of the sequence.
    tokens: Token ids.)")
        .def(
            "accept",
            [](const PySampler& self, uint64_t key, const std::vector<int32_t>& tokens) {
                self.get().accept(key, tokens);
            },
            py::arg("key"), py::arg("tokens"),
            R"(Append tokens that were not sampled here to the history of a sequence.

Args:
    key: Key of the sequence.
    tokens: Token ids.)")
        .def(
            "reset",
            [](const PySampler& self, std::optional<uint64_t> key) {
                key ? self.get().reset(*key) : self.get().reset();
            },
            py::arg("key") = py::none(), R"(Discard the state of a sequence.

Args:
    key: Key of the sequence. None: all sequences.)")
        .def(
            "tokens",
            [](const PySampler& self, uint64_t key) {
                auto tokens = self.get().history(key).tokens;
                const auto n = static_cast<py::ssize_t>(tokens.size());
                return take_vector(std::move(tokens), {n});
            },
            py::arg("key"), R"(Return a copy of the history of a sequence.

Args:
    key: Key of the sequence.

Returns:
    int32 ndarray of shape (n,).)");
}

}  // namespace

void bind_sampler(py::module_& m) {
    SamplerClass sampler(m, "SamplerChain",
                         R"(A chain of sampling stages with the history of each sequence.

plait.Sampler is the public interface. A sequence is identified by any unsigned integer, its key. A
mask has one bit per token, set if the token may be sampled. Calls release the GIL.

Args:
    stages: Tuples of a stage's name and its parameters, in order of application.
    forced: Token ids, as in plait.Sampler.
    seed: Seed of the random numbers.

Source: cpp/sampling/sampler.h)");
    sampler.def(py::init([](const StageList& stages, std::vector<int32_t> forced, uint64_t seed) {
                    auto self = std::make_unique<PySampler>();
                    self->sampler = std::make_unique<sampling::Sampler>(stages_of(stages),
                                                                        std::move(forced), seed);
                    return self;
                }),
                py::arg("stages"), py::arg("forced"), py::arg("seed"));
    bind_rows(sampler);
    bind_histories(sampler);

    m.def("token_logprobs", &logprobs, py::arg("logits").noconvert(), py::arg("tokens"),
          R"(Return the natural log-probability of one token per row.

Args:
    logits: float32 array of shape (n, n_vocab).
    tokens: Token ids, shape (n,).

Returns:
    float64 ndarray of shape (n,).

Raises:
    ValueError: A row contains NaN or +inf, or only -inf.
    IndexError: A token is outside the vocabulary.)");
}

}  // namespace plait::python
