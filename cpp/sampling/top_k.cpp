#include "sampling/top_k.h"

namespace plait::sampling {

void TopK::apply(Candidates& candidates) const {
    const auto n = static_cast<size_t>(k);
    candidates.sort_first(n);
    candidates.keep_first(n);
}

}  // namespace plait::sampling
