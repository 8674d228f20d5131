// Products of many rows with F16 weights: a task's panels are widened to f32 first, which serves all of
// the rows. A widened weight is the same number, so an output has the same bits.
#pragma once

#include "backend/cpu/kernels/float_product.h"

namespace plait::cpu::PLAIT_ISA {

// Scratch: widened panels, then what multiply_floats() needs.
PLAIT_INLINE void multiply_widened(const Product& product, int64_t begin, int64_t end,
                                   unsigned char* scratch) {
    constexpr int kPanel = F32::kLanes;
    const PackedWeight& packed = *product.weight;
    PackedWeight w = packed;
    w.panel_bytes = w.records_offset = widened_panel_bytes(packed);
    const int64_t most = widened_panels(packed);
    for (; begin < end; begin += most) {
        const int64_t n = end - begin < most ? end - begin : most;
        for (int64_t p = 0; p < n; ++p) {
            const auto* from = reinterpret_cast<const uint16_t*>(product.matrix +
                                                                 (begin + p) * packed.panel_bytes);
            auto* to = reinterpret_cast<float*>(scratch + p * w.panel_bytes);
            for (int64_t k = 0; k < w.columns * kPanel; k += kPanel)
                F32::load_f16(from + k).store(to + k);
        }
        Product widened = product;
        widened.weight = &w;
        widened.matrix = scratch;
        widened.first_panel = product.first_panel + begin;
        multiply_floats<WeightF32>(widened, 0, n, scratch + n * w.panel_bytes);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
