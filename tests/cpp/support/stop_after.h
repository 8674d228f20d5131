// A signal to stop that comes after some polls.
#pragma once

#include "backend/backend.h"

namespace plait::test {

class StopAfter final : public StopSignal {
public:
    explicit StopAfter(int polls) : left_(polls) {}
    bool requested() override { return left_-- <= 0; }

private:
    int left_;
};

}  // namespace plait::test
