"""What tests share. `*_data`: tables, streams and stores; `*_server(s)`: fixtures that start one;
`*_child`: programs that tests run as processes of their own."""
