// The Python class SequenceHandle: a reserved sequence id, which arguments name by the object.
#pragma once

#include <memory>

#include "context.h"
#include "convert.h"

namespace plait::python {

// Every method requires the GIL.
class PySequence : public ZeroInitialized {
public:
    PySequence() = default;
    PySequence(PySequence&&) = default;
    PySequence& operator=(PySequence&&) = delete;
    ~PySequence();

    void open(const std::shared_ptr<SharedContext>& shared);
    void close();
    bool closed() const { return !handle_ || !handle_->open; }
    SequenceId id() const;  // throws InvalidArgument if closed
    bool belongs_to(const SharedContext& context) const {
        return !closed() && shared_.get() == &context;
    }
    SequenceRef ref(const char* argument, Access access) const;  // throws InvalidArgument if closed

private:
    SequenceId id_ = 0;
    std::shared_ptr<Handle> handle_;
    std::shared_ptr<SharedContext> shared_;
};

// Converts an argument that names one sequence, a Sequence or an id. Throws TypeError, or `Error`
// for an integer that is out of range.
template <typename Error = InvalidArgument>
SequenceRef sequence_ref(const char* argument, py::handle value, Access access = Access::change) {
    if (!PyLong_CheckExact(value.ptr()) && py::isinstance<PySequence>(value))
        return py::cast<const PySequence&>(value).ref(argument, access);
    return {to_int32<Error>(argument, value), 0, nullptr, argument, access};
}

}  // namespace plait::python
