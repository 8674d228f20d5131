#include "graph/role.h"

#include <array>

#include "base/text.h"

namespace plait {
namespace {

constexpr std::array<std::string_view, static_cast<size_t>(Role::count_)> kNames = {
    "",
    "inp_embd",
    "attn_norm",
    "q",
    "k",
    "v",
    "q_rope",
    "k_rope",
    "attn_heads",
    "attn_pattern",
    "attn_out",
    "ffn_inp",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_act",
    "ffn_out",
    "router_logits",
    "router",
    "experts",
    "l_out",
    "result_norm",
    "result_output",
    "result_scores",
    "token_shift",
    "conv",
    "scan",
    "mixer_out",
};

}  // namespace

std::string_view to_string(Role role) { return kNames[static_cast<size_t>(role)]; }

std::string full_name(Role role, int layer) {
    return layer < 0 ? std::string(to_string(role)) : text("blk.", layer, ".", to_string(role));
}

}  // namespace plait
