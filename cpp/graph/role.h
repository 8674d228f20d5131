// What a value is in the model, for dumps, captures and tests: "blk.3.attn_out", "result_norm".
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
    attn,
    attn_out,
    ffn_inp,
    ffn_norm,
    ffn_gate,
    ffn_up,
    ffn_act,
    ffn_out,
    router,
    experts,
    l_out,
    result_norm,
    result_output,
    result_scores,
    token_shift,
    conv,
    scan,
    mixer_out,  // of recurrent layers
    count_      // keep last
};

std::string_view to_string(Role role);
// "blk.3.attn_out", or the role alone where the value belongs to no layer.
std::string full_name(Role role, int layer);

}  // namespace plait
