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
    const auto widen = [&](const unsigned char* from, unsigned char* to) {
        const auto* half = reinterpret_cast<const uint16_t*>(from);
        auto* whole = reinterpret_cast<float*>(to);
        for (int64_t k = 0; k < w.columns * kPanel; k += kPanel)
            F32::load_f16(half + k).store(whole + k);
    };
    multiply_made(product, w, widened_panels(packed), begin, end, scratch, widen,
                  [](const Product& widened, int64_t n, unsigned char* rest) {
                      multiply_floats<WeightF32>(widened, 0, n, rest);
                  });
}

}  // namespace plait::cpu::PLAIT_ISA
