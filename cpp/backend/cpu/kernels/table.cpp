#include "backend/cpu/kernels/table.h"

namespace plait::cpu::PLAIT_ISA {

#define PLAIT_DECLARE(name)                                                              \
    void name(const void* args, const Frame& frame, const Worker& worker, int64_t begin, \
              int64_t end);                                                              \
    int64_t name##_tasks(const void* args, const Frame& frame);
PLAIT_KERNELS(PLAIT_DECLARE)
#undef PLAIT_DECLARE

const Kernels& kernels() {
#define PLAIT_ENTRY(name) .name = {name, name##_tasks},
    static const Kernels table{PLAIT_KERNELS(PLAIT_ENTRY)};
#undef PLAIT_ENTRY
    return table;
}

}  // namespace plait::cpu::PLAIT_ISA
