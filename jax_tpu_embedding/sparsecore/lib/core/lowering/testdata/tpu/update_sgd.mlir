module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<32xi32>, %arg1: tensor<256xi32>, %arg2: tensor<256xi32>, %arg3: tensor<256xf32>, %arg4: tensor<i32>, %arg5: tensor<64x16xf32>, %arg6: tensor<32x16xf32>, %arg7: tensor<f32>) -> (tensor<64x16xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.custom_call @SparseDenseMatmulGradOpWithOptimizerUpdate(%arg0, %arg1, %arg2, %arg3, %arg6, %arg5, %arg7) {backend_config = "{\22sparse_dense_matmul_config\22: {\22max_ids_per_partition\22: 16, \22max_unique_ids_per_partition\22: 8, \22pad_value\22: 2147483647, \22sharding_strategy\22: 1, \22num_slot_variables\22: 0, \22num_hyperparameters\22: 1}, \22device_type\22: \22DEVICE_TYPE_SPARSECORE\22}", called_computations = [@sgd_optimizer_update]} : (tensor<32xi32>, tensor<256xi32>, tensor<256xi32>, tensor<256xf32>, tensor<32x16xf32>, tensor<64x16xf32>, tensor<f32>) -> tuple<tensor<64x16xf32>>
    %1 = stablehlo.get_tuple_element %0[0] {mhlo.frontend_attributes = {_xla_compute_type = "sparse"}} : (tuple<tensor<64x16xf32>>) -> tensor<64x16xf32>
    return %1 : tensor<64x16xf32>
  }
  func.func private @sgd_optimizer_update(%arg0: tensor<1x16xf32>, %arg1: tensor<1x16xf32>, %arg2: tensor<1x16xf32>) -> tuple<tensor<1x16xf32>> {
    %0 = stablehlo.multiply %arg0, %arg2 : tensor<1x16xf32>
    %1 = stablehlo.subtract %arg1, %0 : tensor<1x16xf32>
    %2 = stablehlo.tuple %1 : tuple<tensor<1x16xf32>>
    return %2 : tuple<tensor<1x16xf32>>
  }
}
