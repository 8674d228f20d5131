# The shaders of the Vulkan backend: shaders/<name>.comp. Types and dimensions are specialization
# constants, which are set when a pipeline is created.
set(PLAIT_SHADERS
    attend
    attend_merge
    combine
    concat
    copy_rows
    delta_rule
    edit_rows
    elementwise
    embed
    hadamard
    mix
    norm
    product_tiles
    product_vector
    rope
    rope_table
    rotate_rows
    route
    select_rows
    selective_scan
    short_conv
    slice
    ssd_scan
    store_rows
    temperature
    token_shift
    wkv6
    wkv7
)
# Compiled if the shader compiler supports GL_<EXTENSION>_cooperative_matrix:
# shaders/product_matrices_<extension>.comp.
set(PLAIT_MATRIX_EXTENSIONS khr nv)
