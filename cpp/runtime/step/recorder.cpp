#include "runtime/step/recorder.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace plait {

void Recorder::start(Target target) {
    target_ = std::move(target);
    calls_.clear();
}

std::shared_ptr<CaptureSink> Recorder::stop() {
    std::shared_ptr<CaptureSink> sink = std::move(target_.sink);
    start({});
    return sink;
}

void Recorder::commit() {
    if (target_.sink)
        target_.sink->write(std::move(call_));
    else
        calls_.push_back(std::move(call_));
}

void Recorder::begin(const PreparedBatch& batch) {
    call_.assign(target_.n_names, {});
    n_tokens_ = static_cast<int64_t>(batch.size());
    output_of_.clear();
    positions_.clear();
    for (size_t entry = 0; entry < batch.size(); ++entry)
        positions_.push_back(batch.position(entry));
    uint32_t before = 0;
    for (const uint8_t wants : batch.source.wants) {
        output_of_.push_back(before);
        before += wants != 0;
    }
    n_outputs_ = before;
}

namespace {

// Replaces pairs of an expert and the bits of its weight by pairs of floats.
void to_floats(std::span<float> routes) {
    for (size_t i = 0; i < routes.size(); i += 2)
        routes[i] = static_cast<float>(std::bit_cast<int32_t>(routes[i]));
}

size_t row_floats(const TensorType& type) {
    return static_cast<size_t>(type.shape.elements() / type.shape[0]);
}

}  // namespace

// The result is valid until the next call.
const float* Recorder::rows_of(const CapturedPlace& place, size_t n_floats,
                               const DeviceBuffers& arenas, std::span<const float* const> outputs) {
    const float* from = nullptr;
    if (place.address != nullptr) {
        from = reinterpret_cast<const float*>(place.address);
    } else if (place.place.space == Space::output) {
        from = outputs[place.place.index];
    } else if (place.place.space == Space::arena) {
        read_.resize(n_floats);
        arenas.on(place.device).read(place.place.offset, std::as_writable_bytes(std::span(read_)));
        from = read_.data();
    }
    PLAIT_CHECK(from != nullptr || n_floats == 0);
    if (place.type.dtype != DType::i32) return from;
    if (from != read_.data()) read_.assign(from, from + n_floats);
    to_floats(std::span(read_).first(n_floats));
    return read_.data();
}

void Recorder::add_patterns(const AttentionPattern& pattern, const MicrobatchKeys& keys,
                            std::span<const float> queries, Captured& captured) const {
    const std::vector<uint32_t>& entries = keys.microbatch.entries;
    captured.shape = {n_tokens_, pattern.n_heads()};
    captured.patterns.resize(static_cast<size_t>(n_tokens_));
    const size_t width = queries.size() / entries.size();
    for (size_t i = 0; i < entries.size(); ++i)
        captured.patterns[entries[i]] =
            pattern.weights(keys, i, positions_[entries[i]], queries.subspan(i * width, width));
}

void Recorder::add(const Plan& plan, const Microbatch& microbatch, const DeviceBuffers& arenas,
                   std::span<const float* const> outputs,
                   const std::function<MicrobatchKeys(uint32_t cache)>& keys_of) {
    for (const CapturedPlace& place : plan.captured()) {
        if (place.index >= target_.n_names) continue;  // kept for gradients
        const bool by_token = place.extent == Extent::tokens;
        const size_t n = by_token ? microbatch.n_tokens() : microbatch.n_outputs();
        const size_t width = row_floats(place.type);
        const float* from = rows_of(place, n * width, arenas, outputs);
        Captured& captured = call_[place.index];
        const auto pattern = target_.patterns.find(place.index);
        if (pattern != target_.patterns.end()) {
            add_patterns(pattern->second, keys_of(pattern->second.keys()), {from, n * width},
                         captured);
            continue;
        }
        captured.shape = place.type.shape;
        captured.shape.dims[0] = by_token ? n_tokens_ : n_outputs_;
        captured.values.resize(static_cast<size_t>(captured.shape.elements()));
        for (size_t i = 0; i < n; ++i) {
            const size_t token = by_token ? i : static_cast<size_t>(microbatch.output_tokens[i]);
            const uint32_t entry = microbatch.entries[token];
            const size_t row = by_token ? entry : output_of_[entry];
            std::copy_n(from + i * width, width, captured.values.data() + row * width);
        }
    }
}

}  // namespace plait
