// The roles of values in a model, which name them in dumps, captures and tests: "blk.3.attn_out".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace plait {

enum class Role : uint8_t {
    none,
    inp_embd,
    attn_norm,
    q,
    k,
    v,
    q_rope,
    k_rope,
    attn_heads,    // each head's output
    attn_pattern,  // the weights of the softmax; no value of a graph
    attn_out,
    ffn_inp,
    ffn_norm,
    ffn_gate,
    ffn_up,
    ffn_act,
    ffn_out,
    router_logits,
    router,  // the chosen experts and their weights
    experts,
    l_out,
    result_norm,
    result_output,
    result_scores,
    token_shift,
    conv,
    scan,
    mixer_out,  // in recurrent layers
    count_      // keep last
};

std::string_view to_string(Role role);
// "blk.3.attn_out", or the role alone if the value belongs to no layer (-1).
std::string full_name(Role role, int layer);

}  // namespace plait
