// Where recurrent layers find their sequences' states; twin of cpp/backend/vulkan/ops/states.h.
// Included between frame.glsl and the declaration of Args; passage.glsl comes after push.glsl.

struct States {
    Ref storage;                // [rows, elements] f32
    Ref read_rows, write_rows;  // [sequences] i32
    Ref token_begin;            // [sequences + 1] i32
    uint elements;              // of a row
    uint padding;
};
