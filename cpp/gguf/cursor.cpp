#include "gguf/cursor.h"

#include <algorithm>
#include <cstring>

namespace plait::gguf {
namespace {

constexpr uint64_t kWindowBytes = uint64_t{1} << 18;

}  // namespace

void Cursor::need(const Field& field, std::string_view what, uint64_t count,
                  uint64_t min_bytes) const {
    const uint64_t left = end_ - position_;
    if (count <= left / min_bytes) return;
    std::string limit;
    if (end_ < file_.size()) limit = text(" (max size of metadata: ", kMaxHeadBytes, " bytes)");
    fail(field, text("claims ", count, " ", what, ", more than the ", left, " bytes left", limit,
                     " can hold"));
}

void Cursor::take(const Field& field, std::byte* target, uint64_t bytes) {
    if (bytes > end_ - position_) {
        fail(field, text("is cut short: ", bytes, " bytes expected at byte ", position_, ", ",
                         end_ - position_, " are left"));
    }
    while (bytes > 0) {
        if (position_ == window_begin_ + window_.size()) refill();
        const uint64_t skip = position_ - window_begin_;
        const uint64_t now = std::min<uint64_t>(bytes, window_.size() - skip);
        std::memcpy(target, window_.data() + skip, now);
        target += now;
        position_ += now;
        bytes -= now;
    }
}

void Cursor::refill() {
    window_begin_ = position_;
    window_.resize(std::min(kWindowBytes, end_ - position_));
    file_.read(window_begin_, window_);
}

}  // namespace plait::gguf
