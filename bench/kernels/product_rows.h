// Rows of activations in the form that a product reads.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels/common/quantized_rows.h"
#include "backend/cpu/kernels/common/table.h"
#include "backend/cpu/kernels/products/product_cost.h"
#include "backend/cpu/memory.h"
#include "roofline.h"

namespace plait::cpu {

template <class Args>
void run(const KernelOf<Args>& kernel, const Args& args, unsigned char* scratch) {
    const Frame frame{};
    kernel.run(&args, frame, Worker{0, scratch}, 0, kernel.tasks(&args, frame));
}

// The scratch of a thread, aligned as kernels expect it.
class Scratch {
public:
    explicit Scratch(int64_t bytes)
        : memory_(allocate_host(static_cast<size_t>(std::max<int64_t>(bytes, 1)))) {}
    unsigned char* data() { return reinterpret_cast<unsigned char*>(memory_->host()); }

private:
    std::unique_ptr<Buffer> memory_;
};

class ProductRows {
public:
    // `n` rows of `per_row` vectors each.
    ProductRows(Isa isa, const PackedWeight& weight, int64_t n, int64_t per_row)
        : isa_(isa),
          form_(row_form(*isa, weight.format)),
          x_(static_cast<size_t>(n * per_row * weight.columns)),
          converted_(n * per_row * weight.input_bytes()) {
        std::mt19937 random(1);
        std::normal_distribution<float> normal;
        for (float& value : x_) value = normal(random);
        args_.x.offset = reinterpret_cast<uint64_t>(x_.data());
        args_.y.offset = reinterpret_cast<uint64_t>(converted_.data());
        args_.fixed_rows = n;
        args_.rows_per_item = per_row;
        args_.columns = weight.columns;
        args_.parts = parts_of(form_);
    }

    // Converts the rows: counted as well, since a model also converts its rows.
    Ref convert(unsigned char* scratch) const {
        if (form_ == RowForm::f32) return args_.x;
        if (form_ == RowForm::bytes)
            run<QuantizeRowsArgs>(kernels(isa_).quantize_rows, args_, scratch);
        else
            run(kernels(isa_).round_rows, args_, scratch);
        return args_.y;
    }

    // The multiplications of the product.
    Unit unit(DType weight) const {
        if (form_ == RowForm::bytes) return Unit::int8;
        return form_ != RowForm::f32 || weight == DType::bf16 ? Unit::bf16 : Unit::f32;
    }

private:
    Isa isa_;
    RowForm form_;
    std::vector<float> x_;
    Scratch converted_;
    RoundRowsArgs args_{};
};

}  // namespace plait::cpu
