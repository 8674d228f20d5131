// Whether what a context's memory holds is what the context believes. Changes that nothing takes back
// (rows that move when their places are noted already, a state that is loaded row by row) leave
// neither the old nor the new where the device fails them; the context is of no use then, and says so.
#pragma once

#include <atomic>
#include <string>

#include "base/error.h"

namespace plait {

class Integrity {
public:
    explicit Integrity(std::string device) : device_(std::move(device)) {}

    // BackendError once a change has failed.
    void check() const {
        if (failed_)
            throw BackendError(device_ +
                               ": this context's memory is damaged, as the device failed halfway "
                               "through a change of it; close the context and make a new one");
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
