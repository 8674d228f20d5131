#include "backend/cpu/kernels/common/table.h"

namespace plait::cpu::PLAIT_ISA {

#define PLAIT_DECLARE(name, Args, tasks)                                                 \
    void name(const Args& args, const Frame& frame, const Worker& worker, int64_t begin, \
              int64_t end);                                                              \
    int64_t tasks(const Args& args, const Frame& frame);
PLAIT_KERNELS(PLAIT_DECLARE)
#undef PLAIT_DECLARE

const Kernels& kernels() {
#define PLAIT_ENTRY(name, Args, tasks) .name = {{kErased<name>, kErased<tasks>}},
    static const Kernels table{PLAIT_KERNELS(PLAIT_ENTRY)};
#undef PLAIT_ENTRY
    return table;
}

}  // namespace plait::cpu::PLAIT_ISA
