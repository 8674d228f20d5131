#include "backend/cpu/kernels/table.h"

#include "backend/cpu/isa_table.h"
#include "backend/cpu/simd/dot.h"

namespace plait::cpu::PLAIT_ISA {

#define PLAIT_DECLARE(name, Args, tasks)                                                 \
    void name(const Args& args, const Frame& frame, const Worker& worker, int64_t begin, \
              int64_t end);                                                              \
    int64_t tasks(const Args& args, const Frame& frame);
PLAIT_KERNELS(PLAIT_DECLARE)
#undef PLAIT_DECLARE

constexpr IsaInfo kRow = isa_row(PLAIT_QUOTE(PLAIT_ISA));
static_assert(kRow.panel_lanes == F32::kLanes);
static_assert(kRow.float_tile_panels == TileShape::kFloatPanels);
static_assert(kRow.has_unsigned_byte_dot == kUnsignedDot);
static_assert(!kRow.bf16_dot_is_fast || DotBF16::kColumns == 2);

const Kernels& kernels() {
#define PLAIT_ENTRY(name, Args, tasks) .name = {{kErased<name>, kErased<tasks>}},
    static const Kernels table{PLAIT_KERNELS(PLAIT_ENTRY)};
#undef PLAIT_ENTRY
    return table;
}

}  // namespace plait::cpu::PLAIT_ISA
