// What Grafana's types say of the dashboard; in JSON, a text stands for each member of an enum.
import type { Dashboard, Panel } from "@grafana/schema";
import type { Options as Stat } from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type { FieldConfig, Options as Series } from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

type Json<T> = T extends string ? `${T}` : T extends (infer E)[] ? Json<E>[] : T extends object ? { [K in keyof T]: Json<T[K]> } : T;
type Of<Kind, Options, Custom = object> = Json<
  Omit<Panel<object, Partial<Custom>>, "type" | "options"> & { options: Partial<Options> }
> & { type: Kind };
type Board = Json<Omit<Dashboard, "panels">> & { panels: (Of<"stat", Stat> | Of<"timeseries", Series, FieldConfig>)[] };
