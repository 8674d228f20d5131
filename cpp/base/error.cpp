#include "base/error.h"

#include "base/text.h"

namespace plait {

void throw_internal(const char* condition, const char* file, int line) {
    throw InternalError(text("internal error: ", condition, " does not hold at ", file, ":", line,
                             "; please report it"));
}

}  // namespace plait
