// Where the states of a recurrent layer are; must match the struct States in
// cpp/backend/vulkan/ops. Include order: frame.glsl, this file, the declaration of Args, push.glsl,
// passage.glsl.

struct States {
    Ref storage;                // [rows, elements] f32
    Ref read_rows, write_rows;  // [sequences] i32
    Ref token_begin;            // [sequences + 1] i32
    uint elements;              // per row
    uint padding;
};
