// How a shader finds what it works on; twin of cpp/backend/vulkan/frame.h. A shader includes this,
// declares its arguments as a buffer reference `Args`, and includes push.glsl.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Floats { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Ints { int v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Words { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer Halves { uint16_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 1) buffer Bytes { uint8_t v[]; };

struct Ref {
    uint64_t offset;
    uint base;
    uint padding;
};

// Rows of a value: `fixed_rows`, or as many as the run has of what `count` says.
struct Rows {
    uint count;
    uint fixed_rows;
};

layout(buffer_reference, scalar) readonly buffer Frame {
    uint64_t base[6];
    uint rows[5];  // tokens 1, outputs 2, moves 3, sequences 4
};
