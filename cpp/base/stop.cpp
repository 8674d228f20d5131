#include "base/stop.h"

#include <utility>

#include "base/error.h"

namespace plait {
namespace {

thread_local const std::atomic<bool>* t_stop = nullptr;

}  // namespace

StopScope::StopScope(const std::atomic<bool>& stop) : outer_(std::exchange(t_stop, &stop)) {}

StopScope::~StopScope() { t_stop = outer_; }

void check_stop() {
    if (t_stop != nullptr && t_stop->load(std::memory_order_relaxed)) throw Interrupted();
}

}  // namespace plait
