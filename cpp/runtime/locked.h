// A value that threads share: every use of it holds its lock. close() destroys the value while its
// users still have the wrapper.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "base/error.h"

namespace plait {

// Like a pointer: `locked->f()` calls f() of the value, and holds the lock for the full expression.
// An expression must therefore use one Locked at most once.
template <typename T>
class Locked {
public:
    // The value, and the lock for as long as this lives.
    class Access {
    public:
        T* operator->() const { return &value_; }
        T& operator*() const { return value_; }

    private:
        friend class Locked;
        Access(std::unique_lock<std::mutex> lock, T& value)
            : lock_(std::move(lock)), value_(value) {}
        std::unique_lock<std::mutex> lock_;
        T& value_;
    };

    explicit Locked(std::unique_ptr<T> value) : value_(std::move(value)) {}

    // Throw InvalidArgument after close().
    Access lock() const {
        std::unique_lock lock(mutex_);
        return {std::move(lock), open(value_)};
    }
    Access operator->() const { return lock(); }

    // Returns f(pointer to the value) with the lock held. The pointer is null after close().
    template <typename F>
    auto with(F&& f) const {
        const std::lock_guard lock(mutex_);
        return std::forward<F>(f)(value_.get());
    }
    // Returns f(value of a, value of b) with both locks held. `a` and `b` must be different
    // objects. The locks are taken in an order that cannot deadlock with another thread. Throws
    // InvalidArgument if one is closed.
    template <typename F>
    static auto with_both(const Locked& a, const Locked& b, F&& f) {
        const std::scoped_lock both(a.mutex_, b.mutex_);
        return std::forward<F>(f)(open(a.value_), open(b.value_));
    }

    // Calls last(value) and destroys the value. Does nothing if it is closed. `last` must not
    // throw.
    template <typename F>
    void close(F&& last) noexcept {
        const std::lock_guard lock(mutex_);
        if (!value_) return;
        std::forward<F>(last)(std::as_const(*value_));
        value_.reset();
    }

private:
    static T& open(const std::unique_ptr<T>& value) {
        if (!value) throw InvalidArgument("the context is closed");
        return *value;
    }

    mutable std::mutex mutex_;
    std::unique_ptr<T> value_;
};

}  // namespace plait
