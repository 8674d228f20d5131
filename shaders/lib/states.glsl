// The places of the states of a recurrent layer; must match StateArgs in
// cpp/backend/vulkan/ops/recurrence.cpp. Include order: frame.glsl, this file, the declaration of
// Args, push.glsl, passage.glsl.

struct States {
    Ref storage;                // [rows, elements] f32
    Ref read_rows, write_rows;  // [sequences] i32
    Ref token_begin;            // [sequences + 1] i32
    uint elements;              // per row
    uint padding;
};
