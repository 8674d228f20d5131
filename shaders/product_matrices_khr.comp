#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
// Defines the matrix types and operations of lib/product_matrices.glsl with
// VK_KHR_cooperative_matrix.

#define X_MATRIX coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define W_MATRIX coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB>
#define SUM_MATRIX coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#define LOAD_ROWS(matrix, from, at, stride) \
    coopMatLoad(matrix, from, at, stride, gl_CooperativeMatrixLayoutRowMajor)
#define LOAD_COLUMNS(matrix, from, at, stride) \
    coopMatLoad(matrix, from, at, stride, gl_CooperativeMatrixLayoutColumnMajor)
#define STORE_ROWS(matrix, to, at, stride) \
    coopMatStore(matrix, to, at, stride, gl_CooperativeMatrixLayoutRowMajor)
#define MULTIPLY_ADD(a, b, c) coopMatMulAdd(a, b, c)

#include "lib/product_matrices.glsl"
