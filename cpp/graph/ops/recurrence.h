// Recurrent layers. The tokens of each sequence are processed in order, starting from the state in
// the sequence's read row; the state after the last token goes to its write row. Sequences may have
// different numbers of tokens.
#pragma once

#include "graph/op_info.h"

namespace plait {
namespace ops {

// The operands through which every recurrent op reads and writes its states.
struct States {
    Operand storage;      // [rows, elements] f32
    Operand read_rows;    // [s] i32; row 0 is all zeros
    Operand write_rows;   // [s] i32; may equal the read row
    Operand token_begin;  // [s + 1] i32
    static constexpr auto kOperands =
        operands(&States::storage, &States::read_rows, &States::write_rows, &States::token_begin);
    bool operator==(const States&) const = default;
};

// y_t = sum_j weight[:, j] x_(t-k+1+j) + bias, per channel. State: the last k-1 values of x.
struct ShortConv {
    Operand x;             // [n, c]
    Operand weight;        // [c, k]
    OptionalOperand bias;  // [c]
    States states;
    static constexpr OpInfo kInfo{.name = "short_conv", .writes_storage = true};
    static constexpr auto kOperands =
        operands(&ShortConv::x, &ShortConv::weight, &ShortConv::bias, &ShortConv::states);
    bool operator==(const ShortConv&) const = default;
};

// y_t = x_(t-1). State: the last x.
struct TokenShift {
    Operand x;  // [n, m]
    States states;
    static constexpr OpInfo kInfo{.name = "token_shift", .writes_storage = true};
    static constexpr auto kOperands = operands(&TokenShift::x, &TokenShift::states);
    bool operator==(const TokenShift&) const = default;
};

// Mamba, arXiv:2312.00752. h = exp(dt a) h + dt b x, y = c h + d x. State: h.
struct SelectiveScan {
    Operand x, dt;  // [n, c]; dt after its softplus
    Operand a;      // [c, k], negative
    Operand b, c;   // [n, k]
    Operand d;      // [c]
    States states;
    static constexpr OpInfo kInfo{.name = "selective_scan", .writes_storage = true};
    static constexpr auto kOperands =
        operands(&SelectiveScan::x, &SelectiveScan::dt, &SelectiveScan::a, &SelectiveScan::b,
                 &SelectiveScan::c, &SelectiveScan::d, &SelectiveScan::states);
    bool operator==(const SelectiveScan&) const = default;
};

// Mamba-2, arXiv:2405.21060. Each head has one decay; h/g heads share b and c.
struct SsdScan {
    Operand x;     // [n, h, p]
    Operand dt;    // [n, h]
    Operand a;     // [h]
    Operand b, c;  // [n, g, k]
    Operand d;     // [h]
    States states;
    static constexpr OpInfo kInfo{.name = "ssd_scan", .writes_storage = true};
    static constexpr auto kOperands = operands(&SsdScan::x, &SsdScan::dt, &SsdScan::a, &SsdScan::b,
                                               &SsdScan::c, &SsdScan::d, &SsdScan::states);
    bool operator==(const SsdScan&) const = default;
};

// RWKV-6, arXiv:2404.05892. y = r (S + diag(u) k^T v), S = diag(w) S + k^T v.
struct Wkv6 {
    Operand r, k, v;  // [n, h, d]
    Operand w;        // [n, h, d], in (0, 1)
    Operand u;        // [h, d]
    States states;
    static constexpr OpInfo kInfo{.name = "wkv6", .writes_storage = true};
    static constexpr auto kOperands =
        operands(&Wkv6::r, &Wkv6::k, &Wkv6::v, &Wkv6::w, &Wkv6::u, &Wkv6::states);
    bool operator==(const Wkv6&) const = default;
};

// RWKV-7, arXiv:2503.14456. S = S diag(w) + (S a^T) b + v^T k, y = S r^T.
struct Wkv7 {
    Operand r, w, k, v, a, b;  // [n, h, d]
    States states;
    static constexpr OpInfo kInfo{.name = "wkv7", .writes_storage = true};
    static constexpr auto kOperands =
        operands(&Wkv7::r, &Wkv7::w, &Wkv7::k, &Wkv7::v, &Wkv7::a, &Wkv7::b, &Wkv7::states);
    bool operator==(const Wkv7&) const = default;
};

// Gated DeltaNet, arXiv:2412.06464. S = exp(g) S; S += k^T beta (v - k S); y = q S.
struct DeltaRule {
    Operand q, k;     // [n, hk, dk], normalised and scaled; h/hk heads share them
    Operand v;        // [n, h, dv]
    Operand g, beta;  // [n, h]
    States states;
    bool tiled = false;  // head i uses key head i mod hk, instead of i / (h/hk)
    static constexpr OpInfo kInfo{.name = "delta_rule", .writes_storage = true};
    static constexpr auto kOperands = operands(&DeltaRule::q, &DeltaRule::k, &DeltaRule::v,
                                               &DeltaRule::g, &DeltaRule::beta, &DeltaRule::states);
    bool operator==(const DeltaRule&) const = default;
};

}  // namespace ops

// The operands of ops::States.
struct States {
    Value storage;
    Value read_rows;
    Value write_rows;
    Value token_begin;
};

// [n, c], [c, k], [c] -> [n, c]; state [c, k-1]
Value short_conv(Value x, Value weight, Value bias, const States& states);
Value token_shift(Value x, const States& states);  // [n, m] -> [n, m]; state [m]

struct SelectiveScanInputs {
    Value x, dt, a, b, c, d;
};
Value selective_scan(const SelectiveScanInputs& in, const States& states);  // -> [n, c]; [c, k]

struct SsdScanInputs {
    Value x, dt, a, d, b, c;
};
Value ssd_scan(const SsdScanInputs& in, const States& states);  // -> [n, h, p]; state [h, p, k]

struct Wkv6Inputs {
    Value r, k, v, w, u;
};
Value wkv6(const Wkv6Inputs& in, const States& states);  // -> [n, h, d]; state [h, d, d]

struct Wkv7Inputs {
    Value r, w, k, v, a, b;
};
Value wkv7(const Wkv7Inputs& in, const States& states);  // -> [n, h, d]; state [h, d, d]

struct DeltaRuleInputs {
    Value q, k, v, g, beta;
    bool tiled = false;
};
Value delta_rule(const DeltaRuleInputs& in, const States& states);  // -> [n, h, dv]; [h, dk, dv]

}  // namespace plait
