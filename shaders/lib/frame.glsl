// The addresses through which a shader finds its arguments and values; must match
// cpp/backend/vulkan/frame.h. A shader includes this file, declares its arguments as a buffer
// reference named Args, and then includes push.glsl. "Dispatch" in the header of a shader is the
// number of workgroups along each axis.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require

layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Quads { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Floats { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Ints { int v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Words { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer Halves { uint16_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 1) buffer Bytes { uint8_t v[]; };

// Address of a value: frame.base[base] + offset.
struct Ref {
    uint64_t offset;
    uint base;
    uint padding;
};

// Number of rows of a value: fixed_rows if `count` is 0, otherwise frame.rows[count].
struct Rows {
    uint count;
    uint fixed_rows;
};

layout(buffer_reference, scalar) readonly buffer Frame {
    uint64_t base[6];
    uint rows[5];  // 1 tokens, 2 outputs, 3 moves, 4 sequences
};
