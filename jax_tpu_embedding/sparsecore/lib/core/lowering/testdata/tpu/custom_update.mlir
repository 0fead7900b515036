module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<32xi32>, %arg1: tensor<256xi32>, %arg2: tensor<256xi32>, %arg3: tensor<256xf32>, %arg4: tensor<i32>, %arg5: tensor<32x16xf32>, %arg6: tensor<f32>, %arg7: tensor<1xf32>, %arg8: tensor<64x16xf32>, %arg9: tensor<64x16xf32>) -> (tensor<64x16xf32> {jax.result_info = "result[0]"}, tensor<64x16xf32> {jax.result_info = "result[1]"}) {
    %0 = stablehlo.reshape %arg7 : (tensor<1xf32>) -> tensor<f32>
    %1 = stablehlo.custom_call @SparseDenseMatmulGradOpWithOptimizerUpdate(%arg0, %arg1, %arg2, %arg3, %arg5, %arg8, %arg9, %arg6, %0) {backend_config = "{\22sparse_dense_matmul_config\22: {\22max_ids_per_partition\22: 16, \22max_unique_ids_per_partition\22: 8, \22pad_value\22: 2147483647, \22sharding_strategy\22: 1, \22num_slot_variables\22: 1, \22num_hyperparameters\22: 2}, \22device_type\22: \22DEVICE_TYPE_SPARSECORE\22}", called_computations = [@"custom-stack"]} : (tensor<32xi32>, tensor<256xi32>, tensor<256xi32>, tensor<256xf32>, tensor<32x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>, tensor<f32>, tensor<f32>) -> tuple<tensor<64x16xf32>, tensor<64x16xf32>>
    %2 = stablehlo.get_tuple_element %1[0] {mhlo.frontend_attributes = {_xla_compute_type = "sparse"}} : (tuple<tensor<64x16xf32>, tensor<64x16xf32>>) -> tensor<64x16xf32>
    %3 = stablehlo.get_tuple_element %1[1] {mhlo.frontend_attributes = {_xla_compute_type = "sparse"}} : (tuple<tensor<64x16xf32>, tensor<64x16xf32>>) -> tensor<64x16xf32>
    return %2, %3 : tensor<64x16xf32>, tensor<64x16xf32>
  }
  func.func private @"custom-stack"(%arg0: tensor<1x16xf32>, %arg1: tensor<1x16xf32>, %arg2: tensor<1x16xf32>, %arg3: tensor<1x16xf32>, %arg4: tensor<1x16xf32>) -> tuple<tensor<1x16xf32>, tensor<1x16xf32>> {
    %0 = stablehlo.multiply %arg4, %arg2 : tensor<1x16xf32>
    %1 = stablehlo.add %0, %arg0 : tensor<1x16xf32>
    %2 = stablehlo.tanh %1 : tensor<1x16xf32>
    %3 = stablehlo.multiply %arg3, %2 : tensor<1x16xf32>
    %4 = stablehlo.subtract %arg1, %3 : tensor<1x16xf32>
    %5 = stablehlo.tuple %4, %1 : tuple<tensor<1x16xf32>, tensor<1x16xf32>>
    return %5 : tuple<tensor<1x16xf32>, tensor<1x16xf32>>
  }
}
