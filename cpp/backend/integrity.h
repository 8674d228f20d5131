// Records whether a context's memory still matches its bookkeeping. If a device fails halfway
// through a change (rows that move after their new places were recorded, a state that is loaded row
// by row), the memory has neither the old nor the new contents, and the context refuses further
// work.
#pragma once

#include <atomic>
#include <string>

#include "base/error.h"

namespace plait {

class Integrity {
public:
    explicit Integrity(std::string device) : device_(std::move(device)) {}

    // Throws BackendError if a change has failed.
    void check() const {
        if (failed_)
            throw BackendError(
                device_ +
                ": this context's memory is damaged, because the device failed while "
                "changing it; close the context and create a new one");
    }
    template <typename Change>
    void change(Change&& change) {
        check();
        try {
            change();
        } catch (...) {
            failed_ = true;
            throw;
        }
    }

private:
    std::string device_;
    std::atomic<bool> failed_{false};
};

}  // namespace plait
