#include "runtime/step/recorder.h"

#include <algorithm>

#include "base/error.h"

namespace plait {

void Recorder::start(uint16_t set, size_t n_names) {
    set_ = set;
    n_names_ = n_names;
    calls_.clear();
}

void Recorder::begin(const PreparedBatch& batch) {
    call_.assign(n_names_, {});
    n_tokens_ = static_cast<int64_t>(batch.size());
    output_of_.clear();
    uint32_t before = 0;
    for (const uint8_t wants : batch.source.wants) {
        output_of_.push_back(before);
        before += wants != 0;
    }
    n_outputs_ = before;
}

void Recorder::add(const Plan& plan, const Microbatch& microbatch, const DeviceBuffers& arenas,
                   std::span<const float* const> outputs) {
    for (const CapturedPlace& place : plan.captured()) {
        if (place.index >= n_names_) continue;  // kept for gradients
        const bool by_token = place.extent == Extent::tokens;
        Captured& captured = call_[place.index];
        captured.shape = place.type.shape;
        captured.shape.dims[0] = 1;
        const auto width = static_cast<size_t>(captured.shape.elements());
        captured.shape.dims[0] = by_token ? n_tokens_ : n_outputs_;
        captured.values.resize(static_cast<size_t>(captured.shape.elements()));
        const size_t n = by_token ? microbatch.n_tokens() : microbatch.n_outputs();
        const float* from = nullptr;
        if (place.address != nullptr) {
            from = reinterpret_cast<const float*>(place.address);
        } else if (place.place.space == Space::output) {
            from = outputs[place.place.index];
        } else if (place.place.space == Space::arena) {
            read_.resize(n * width);
            arenas.on(place.device)
                .read(place.place.offset, std::as_writable_bytes(std::span(read_)));
            from = read_.data();
        }
        PLAIT_CHECK(from != nullptr || n == 0);
        for (size_t i = 0; i < n; ++i) {
            const size_t token = by_token ? i : static_cast<size_t>(microbatch.output_tokens[i]);
            const uint32_t entry = microbatch.entries[token];
            const size_t row = by_token ? entry : output_of_[entry];
            std::copy_n(from + i * width, width, captured.values.data() + row * width);
        }
    }
}

}  // namespace plait
