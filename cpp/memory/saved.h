// Copies of a value at the beginnings of the open transactions.
#pragma once

#include <cstddef>
#include <vector>

namespace plait {

// Keeps the memory of ended transactions for later ones.
template <typename T>
class Saved {
public:
    // Throws what copying throws; the list is then unchanged.
    void push(const T& value) {
        if (values_.size() == n_) {
            values_.push_back(value);
        } else {
            values_[n_] = value;
        }
        ++n_;
    }
    T& top() { return values_[n_ - 1]; }
    void pop() noexcept { --n_; }
    size_t size() const { return n_; }
    const T& operator[](size_t i) const { return values_[i]; }

private:
    std::vector<T> values_;
    size_t n_ = 0;
};

}  // namespace plait
