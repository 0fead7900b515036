module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2048xi32>, %arg1: tensor<256xi32>, %arg2: tensor<256xi32>, %arg3: tensor<256xf32>, %arg4: tensor<i32>, %arg5: tensor<64x16xf32>, %arg6: tensor<64x16xf32>, %arg7: tensor<64x16xf32>, %arg8: tensor<32x16xf32>, %arg9: tensor<f32>, %arg10: tensor<f32>, %arg11: tensor<f32>, %arg12: tensor<f32>, %arg13: tensor<f32>, %arg14: tensor<f32>, %arg15: tensor<f32>) -> (tensor<64x16xf32> {jax.result_info = "result[0]"}, tensor<64x16xf32> {jax.result_info = "result[1]"}, tensor<64x16xf32> {jax.result_info = "result[2]"}) {
    %0 = stablehlo.custom_call @SparseDenseMatmulGradOptimizerUpdateWithMinibatchingOp(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %arg6, %arg7, %arg8, %arg9, %arg10, %arg11, %arg12, %arg13, %arg14, %arg15) {backend_config = "{\22sparse_dense_matmul_config\22: {\22max_ids_per_partition\22: 16, \22max_unique_ids_per_partition\22: 8, \22pad_value\22: 2147483647, \22sharding_strategy\22: 1, \22num_slot_variables\22: 2, \22num_hyperparameters\22: 7}, \22device_type\22: \22DEVICE_TYPE_SPARSECORE\22}", called_computations = [@"adam-stack"]} : (tensor<2048xi32>, tensor<256xi32>, tensor<256xi32>, tensor<256xf32>, tensor<i32>, tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>, tensor<32x16xf32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) -> tuple<tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>>
    %1 = stablehlo.get_tuple_element %0[0] {mhlo.frontend_attributes = {_xla_compute_type = "sparse"}} : (tuple<tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>>) -> tensor<64x16xf32>
    %2 = stablehlo.get_tuple_element %0[1] {mhlo.frontend_attributes = {_xla_compute_type = "sparse"}} : (tuple<tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>>) -> tensor<64x16xf32>
    %3 = stablehlo.get_tuple_element %0[2] {mhlo.frontend_attributes = {_xla_compute_type = "sparse"}} : (tuple<tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>>) -> tensor<64x16xf32>
    return %1, %2, %3 : tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>
  }
  func.func private @"adam-stack"(%arg0: tensor<1x16xf32>, %arg1: tensor<1x16xf32>, %arg2: tensor<1x16xf32>, %arg3: tensor<1x16xf32>, %arg4: tensor<1x16xf32>, %arg5: tensor<1x16xf32>, %arg6: tensor<1x16xf32>, %arg7: tensor<1x16xf32>, %arg8: tensor<1x16xf32>, %arg9: tensor<1x16xf32>, %arg10: tensor<1x16xf32>) -> tuple<tensor<1x16xf32>, tensor<1x16xf32>, tensor<1x16xf32>> {
    %0 = stablehlo.multiply %arg0, %arg0 : tensor<1x16xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<1x16xf32>, tensor<f32>) -> tensor<1xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<1xf32>) -> tensor<1x1xf32>
    %3 = stablehlo.sqrt %2 : tensor<1x1xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1] : (tensor<1x1xf32>) -> tensor<1x16xf32>
    %5 = stablehlo.maximum %4, %arg8 : tensor<1x16xf32>
    %6 = stablehlo.divide %arg8, %5 : tensor<1x16xf32>
    %7 = stablehlo.multiply %arg0, %6 : tensor<1x16xf32>
    %8 = stablehlo.multiply %arg9, %arg1 : tensor<1x16xf32>
    %9 = stablehlo.add %7, %8 : tensor<1x16xf32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %10 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %11 = stablehlo.subtract %10, %arg5 : tensor<1x16xf32>
    %12 = stablehlo.subtract %9, %arg2 : tensor<1x16xf32>
    %13 = stablehlo.multiply %11, %12 : tensor<1x16xf32>
    %14 = stablehlo.add %arg2, %13 : tensor<1x16xf32>
    %cst_1 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %15 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %16 = stablehlo.subtract %15, %arg6 : tensor<1x16xf32>
    %17 = stablehlo.multiply %9, %9 : tensor<1x16xf32>
    %18 = stablehlo.subtract %17, %arg3 : tensor<1x16xf32>
    %19 = stablehlo.multiply %16, %18 : tensor<1x16xf32>
    %20 = stablehlo.add %arg3, %19 : tensor<1x16xf32>
    %21 = stablehlo.multiply %arg4, %14 : tensor<1x16xf32>
    %22 = stablehlo.sqrt %20 : tensor<1x16xf32>
    %23 = stablehlo.add %22, %arg7 : tensor<1x16xf32>
    %24 = stablehlo.divide %21, %23 : tensor<1x16xf32>
    %25 = stablehlo.subtract %arg1, %24 : tensor<1x16xf32>
    %26 = stablehlo.multiply %arg10, %arg1 : tensor<1x16xf32>
    %27 = stablehlo.subtract %25, %26 : tensor<1x16xf32>
    %cst_2 = stablehlo.constant dense<-2.000000e+00> : tensor<f32>
    %cst_3 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %28 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %29 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %30 = stablehlo.clamp %28, %27, %29 : tensor<1x16xf32>
    %31 = stablehlo.tuple %30, %14, %20 : tuple<tensor<1x16xf32>, tensor<1x16xf32>, tensor<1x16xf32>>
    return %31 : tuple<tensor<1x16xf32>, tensor<1x16xf32>, tensor<1x16xf32>>
  }
}
