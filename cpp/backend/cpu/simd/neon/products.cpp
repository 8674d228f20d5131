// The kernels of NEON, with the products of PLAIT_ISA.
#include "backend/cpu/kernels/common/table.h"

namespace plait::cpu {

namespace neon {
const Kernels& kernels();
}

namespace PLAIT_ISA {

#define PLAIT_DECLARE(name, Args, tasks)                                                 \
    void name(const Args& args, const Frame& frame, const Worker& worker, int64_t begin, \
              int64_t end);                                                              \
    int64_t tasks(const Args& args, const Frame& frame);
PLAIT_PRODUCTS_KERNELS(PLAIT_DECLARE)
#undef PLAIT_DECLARE

const Kernels& kernels() {
    static const Kernels table = [] {
        Kernels kernels = neon::kernels();
#define PLAIT_REPLACE(name, Args, tasks) \
    kernels.name = {{kErased<PLAIT_ISA::name>, kErased<tasks>}};
        PLAIT_PRODUCTS_KERNELS(PLAIT_REPLACE)
#undef PLAIT_REPLACE
        return kernels;
    }();
    return table;
}

}  // namespace PLAIT_ISA
}  // namespace plait::cpu
