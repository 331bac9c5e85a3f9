import { mount } from "svelte";

import ExplorerPage from "../explorer/ExplorerPage.svelte";
import { HttpTransport } from "../explorer/transport";

mount(ExplorerPage, { target: document.body, props: { api: new HttpTransport() } });
